# SPDX-License-Identifier: Apache-2.0
"""linger: from a PyTorch model to fixed-point hardware, proven bit for bit on the way.

Names are loaded on first use, so importing linger imports nothing else. In the order of the pipeline:
"""

from linger.lazy_exports import lazy_exports
from linger.version import __version__ as __version__

_STAGES = {
    "all in one": "quantize",
    "analyse": "wb_analyse advise Dumper plot_tensors",
    "constrain": "trace_layers normalize_layers normalize_module disable_normalize",
    "quantize": "init Switches QuantMode quant_module quant_function disable_quant quant_tensor calibration choose_ranges save_statistics merge_statistics save_config QTensor FixedPoint",
    "train": "learn_scales Schedule",
    "tune": "tune equalize correct_biases choose_exponents round_weights distill find_bits",
    "diagnose": "coverage compare_layers sensitivity plot_layers",
    "export": "onnx redirect restore",
    "edit": "graph convert_dialect",
    "check, repair": "check memory repair",
    "verify": "record Recording save_recordings load_recordings verify check_certificate",
    "run": "Session",
    "compare": "compare write_vectors",
    "deploy": "c",
    "decide": "report",
    "errors": "LingerError UsageError UnsupportedError GraphError VerificationError",
}
"""What `dir(linger)` shows. Classes of results, setters, Normalize layers and older spellings can be imported, and are left out here."""

__doc__ = "\n".join([__doc__ or "", *(f"    {stage:<14} {names}" for stage, names in _STAGES.items())])
__getattr__, __dir__, __all__ = lazy_exports(__name__, " ".join(_STAGES.values()).split())
