# SPDX-License-Identifier: Apache-2.0
"""What a chip has against a file that is about to be written."""

from __future__ import annotations

import logging

import onnx
import onnx_ir as ir

from linger.checks.limits.target_findings import target_findings
from linger.errors import UnsupportedError
from linger.graph.core.finding import ERROR, NOTE
from linger.targets import find_target

logger = logging.getLogger(__name__)


def judge(proto: onnx.ModelProto, target: str) -> None:
    """Refuse a model that the chip cannot take; log what may go wrong and what could not be checked.

    Raises:
        UnsupportedError: There are errors among the findings; all findings are in the message.
    """
    found = target_findings(ir.from_proto(proto), find_target(target))
    errors = sum(f.severity == ERROR for f in found)
    if errors:
        listed = "\n".join(f"  {f.severity}: {f}" for f in found)
        raise UnsupportedError(
            f"export: {target} cannot take this model: {errors} of {len(found)} findings are errors. Nothing was written.\n"
            f"{listed}"
        )
    for finding in found:
        level = logging.INFO if finding.severity == NOTE else logging.WARNING
        logger.log(level, "export for %s: %s", target, finding)
