# SPDX-License-Identifier: Apache-2.0
"""linger.fix_dequant and linger.parser_dequant: the documented faces of the repair."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from linger.checks.repair.repair import RuleChange, load_broken, repair, uncollected
from linger.errors import GraphError, VerificationError, listing
from linger.graph.core.finding import ERROR, Finding
from linger.graph.facts.propagation import OutputPolicy
from linger.graph.files.model_io import ModelLike, save
from linger.verification.recording import Recording
from linger.version import __version__

if TYPE_CHECKING:
    from linger.verification.proof.result import Verification

_SUFFIX = ".onnx"
_PRODUCER = "linger"
_SEEDS = (0, 1)


@dataclass(frozen=True, repr=False)
class Repair:
    """What `linger.fix_dequant` did.

    Attributes:
        model: The mended model.
        path: The file it was written to; None where the model was given in memory.
        changes: Every edit, in order, with its rule.
        findings: What could not be mended, or is doubtful; nothing was changed there.
        check: The comparison of ONNX Runtime with the numpy reference, where one was asked for.
    """

    model: ir.Model
    path: Path | None
    changes: tuple[RuleChange, ...]
    findings: tuple[Finding, ...]
    check: Verification | None = None

    @property
    def ok(self) -> bool:
        """Whether no error is left."""
        return not any(f.severity == ERROR for f in self.findings)

    def summary(self) -> str:
        """The verdict in a few sentences."""
        text = f"{len(self.changes)} changes" if len(self.changes) != 1 else "1 change"
        text += f", written to {self.path}." if self.path is not None else "."
        errors = [f for f in self.findings if f.severity == ERROR]
        if errors:
            text += f" {len(errors)} left to mend by hand: {listing(map(str, errors))}"
        if self.check is not None:
            text += f" {self.check.summary()}"
        return text

    def __repr__(self) -> str:
        return f"Repair({self.summary()})"


def fix_dequant(
    model_name: ModelLike,
    is_check: bool = False,  # noqa: FBT001, FBT002 - the documented signature
    *,
    outputs: OutputPolicy = "declared",
    rules: Iterable[str] | str | None = None,
) -> Repair:
    """Mend a file whose Dequants are misplaced or whose graph is broken, and say what was changed.

    Args:
        model_name: A file, mended into `<name>_fix.onnx` beside it; or bytes, a ModelProto or an onnx_ir model, which stays as
            it is: nothing is written.
        is_check: Run the result, on generated inputs, in ONNX Runtime and with the numpy reference, before anything is written.
        outputs: Quantised outputs of the model become real numbers where the file does not declare an integer type
            ("declared"), always ("float"), or never ("integer").
        rules: Names of the rules to apply; None for all that are on by default.

    Raises:
        UsageError: There is no such file, or no such rule.
        GraphError: The content is no model, or cannot be sorted.
        VerificationError: The check found a difference.
    """
    with uncollected():
        model, before = load_broken(model_name)
        changes, findings = repair(model, outputs=outputs, rules=rules)
    verdict = _checked(model) if is_check else None
    path = None
    if isinstance(model_name, (str, os.PathLike)):
        given = Path(model_name)
        path = given.with_name(f"{given.name.removesuffix(_SUFFIX)}_fix{_SUFFIX}")
        save(model, path)
    return Repair(model, path, (*before, *changes), tuple(findings), verdict)


def parser_dequant(onnx_model: Any, is_change_in_out_type: bool) -> Any:  # noqa: FBT001 - the documented signature
    """Put Dequants where they belong, and return a model of the kind that was given, which stays as it is.

    The producer's name then begins with `linger_<version>_`, once.

    Args:
        onnx_model: A ModelProto (or an onnx_ir model, bytes, a path: those give an onnx_ir model).
        is_change_in_out_type: Quantised outputs stay integers, and are declared so; otherwise they become real numbers.

    Raises:
        GraphError: The content is no model, or holds contradictions; all of them are named.
    """
    with uncollected():
        model, _ = load_broken(onnx_model)
        _, findings = repair(model, outputs="integer" if is_change_in_out_type else "float")
    errors = [finding for finding in findings if finding.severity == ERROR]
    if errors:
        raise GraphError(f"parser_dequant: the model contradicts itself: {listing(map(str, errors))}")
    if not (model.producer_name or "").startswith(_PRODUCER):
        model.producer_name = f"{_PRODUCER}_{__version__}_{model.producer_name or ''}".rstrip("_")
    return ir.to_proto(model) if isinstance(onnx_model, onnx.ModelProto) else model


def _checked(model: ir.Model) -> Verification:
    # a runtime is started only where one is asked for
    from linger.runtime.generated import generated_feeds
    from linger.runtime.session import Session
    from linger.verification.proof.verify import verify_file

    session = Session(model)
    recordings = [Recording(inputs=list(generated_feeds(session, seed).values())) for seed in _SEEDS]
    result = verify_file(model, recordings)
    if result.differing or result.output_differences:
        raise VerificationError(f"the mended model: {result.summary()} Nothing was written.")
    return result
