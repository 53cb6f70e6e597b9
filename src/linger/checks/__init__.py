# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a file (check), and putting it right (repair). Never imports torch."""

from linger.front_door import front_door

__getattr__, __dir__, __all__ = front_door(__name__, ("target_findings", "repair_rules", "repair_proto"))
