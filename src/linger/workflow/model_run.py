# SPDX-License-Identifier: Apache-2.0
"""The run of a file together with the torch models and the results that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from linger.errors import UsageError
from linger.graph.network import Network
from linger.quantization.diagnosis.sensitivity import Sensitivity
from linger.reporting.facts import HELD_OUT, Run
from linger.targets import Target
from linger.tuning.one_call.result import TuneResult
from linger.workflow.file_facts import FileFacts, complete_run
from linger.workflow.model_facts import ModelFacts, with_results
from linger.workflow.model_quality import DATA

if TYPE_CHECKING:
    from linger.verification.proof.result import Verification


def run_of_model(
    file: Path | Network,
    chip: Target | None,
    *,
    model: nn.Module | None,
    reference: nn.Module | None,
    data: object,
    labels: object,
    metric: Callable[[nn.Module], float] | None,
    tuning: TuneResult | None,
    sensitivity: Sensitivity | None,
    verification: Verification | str | None,
    held_out: bool | None,
    name: str | None,
) -> Run:
    """What `linger.report` says of a file and its models; the arguments are the same.

    Raises:
        UsageError: Arguments that do not fit.
    """
    _require_kinds(tuning, sensitivity)
    if model is None:
        without = {"reference": reference, "data": data, "labels": labels, "metric": metric, "held_out": held_out}
        wrong = [key for key, value in without.items() if value is not None]
        if wrong:
            raise UsageError(f"report: {', '.join(wrong)} needs the quantised model. Give model= too.")
        return with_results(complete_run(FileFacts.of(file, chip), name, None, verification), tuning, sensitivity)
    if labels is not None and data is None:
        raise UsageError("report: labels need the data that they belong to. Give data= too.")
    of = HELD_OUT if held_out else DATA
    found = ModelFacts.of(
        model, reference, data, metric=metric, labels=labels, of=of
    )  # wrong usage is said before the work
    facts = FileFacts.of(file, chip)
    feeds = None if verification is None else found.feeds(facts)
    run = complete_run(facts, name, feeds, verification or found.verified(facts))
    return found.added_to(run, facts, tuning, sensitivity)


def _require_kinds(tuning: object, sensitivity: object) -> None:
    if tuning is not None and not isinstance(tuning, TuneResult):
        raise UsageError(
            f"report: tuning is a {type(tuning).__name__}. Give the second of what linger.tune returns, a TuneResult."
        )
    if sensitivity is not None and not isinstance(sensitivity, Sensitivity):
        raise UsageError(
            f"report: sensitivity is a {type(sensitivity).__name__}. Give what linger.sensitivity returns."
        )
