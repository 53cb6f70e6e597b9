# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a file (check), and putting it right (repair). Never imports torch."""

from linger.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, ("target_findings", "repair_rules", "repair_proto"))
