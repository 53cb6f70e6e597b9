"""The settings of a quantized model as a file, for their own tests.

Tests know these by name; where the package keeps each of them is known here alone.
"""

from linger.quantization.setup.config import config_of, fits, last_fitting
from linger.quantization.setup.config_file import (
    ChannelLimit,
    Config,
    Constraint,
    FunctionConfig,
    Fused,
    LayerConfig,
    as_text,
    read_config,
    write_config,
)

__all__ = [
    "ChannelLimit",
    "Config",
    "Constraint",
    "FunctionConfig",
    "Fused",
    "LayerConfig",
    "as_text",
    "config_of",
    "fits",
    "last_fitting",
    "read_config",
    "write_config",
]
