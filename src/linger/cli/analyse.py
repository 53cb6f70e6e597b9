# SPDX-License-Identifier: Apache-2.0
"""The command `linger analyse`: shows where a checkpoint or a model will lose precision, and what to do about it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.cli import add_command, console, say, say_result
from linger.cli.arguments.options import Json, one_of, require_code, require_file
from linger.errors import UsageError, refuse_together

if TYPE_CHECKING:
    from linger.analysis.advice import Advice
    from linger.analysis.result import Analysis

analyse = typer.Typer(
    help="See what fixed point will cost: weights, or the outputs of layers.",
    epilog="Example: linger analyse weights model.safetensors",
)

_INPUTS_HINT = "Give an .npz or .npy file with a typical input"

_Csv = Annotated[bool, typer.Option("--csv", help="The rows as CSV.")]
_Log = Annotated[Path | None, typer.Option(help="Also write the documented log to this file.")]
_Plots = Annotated[Path | None, typer.Option(help="Draw the most worrying tensors into this folder.")]
_Worst = Annotated[int, typer.Option(min=0, help="How many tensors to advise on.")]


def weights(
    checkpoint: Annotated[Path, typer.Argument(help="A .pt, .pth or .safetensors file, or the .index.json of shards.")],
    log: _Log = None,
    plots: _Plots = None,
    worst: _Worst = 10,
    *,
    as_json: Json = False,
    as_csv: _Csv = False,
) -> None:
    """Mean, maximum and order statistics of every tensor of a checkpoint, and advice on the worst.

    Examples:
        linger analyse weights model.safetensors --worst 5
        linger analyse weights model.pt --log weights.log --plots images
    """
    one_of("analyse", json=as_json, csv=as_csv)
    require_file(checkpoint)
    from linger.analysis.weights import wb_analyse  # importing torch is slow: not for --help or wrong paths
    from linger.constraint.advising import advise

    analysis = wb_analyse(checkpoint, log)
    _show(analysis, advise(checkpoint), worst, as_json=as_json, as_csv=as_csv)
    if plots is not None:
        _plot(checkpoint, plots, None, worst)


def layers(
    model: Annotated[
        str, typer.Argument(help="package.module:name or file.py:name: a model, or a callable that makes one.")
    ],
    inputs: Annotated[
        Path | None, typer.Option(help="The inputs to run on: an .npz file, arguments in order, or an .npy file.")
    ] = None,
    shape: Annotated[
        str, typer.Option(help="Sizes of an input: a random one of 1x3x224x224, in place of --inputs.")
    ] = "",
    checkpoint: Annotated[Path | None, typer.Option(help="Weights to load into the model.")] = None,
    match: Annotated[str, typer.Option(help="Only layers whose root.path matches this expression.")] = ".*",
    log: _Log = None,
    plots: _Plots = None,
    worst: _Worst = 10,
    *,
    as_json: Json = False,
    as_csv: _Csv = False,
) -> None:
    """Statistics of every layer's output on a typical input, and advice on the worst weights and outputs.

    Examples:
        linger analyse layers net.py:make --shape 1x3x224x224
        linger analyse layers net.py:make --inputs typical.npz --checkpoint model.pt
    """
    one_of("analyse", json=as_json, csv=as_csv)
    if (inputs is None) == (not shape):
        raise UsageError(
            "analyse layers: give --inputs with typical data, or --shape for a random tensor; one of the two."
        )
    checks = [partial(require_code, model)]
    checks += [] if inputs is None else [partial(require_file, inputs, _INPUTS_HINT)]
    checks += [] if checkpoint is None else [partial(require_file, checkpoint)]
    refuse_together(checks)
    from linger.analysis.batches import run_batch
    from linger.cli.arguments.model import load_inputs, load_model, random_input
    from linger.constraint.advising import advise
    from linger.quantization.diagnosis.dumper import Dumper

    arguments = load_inputs(inputs) if inputs is not None else random_input(shape)
    loaded = load_model(model, checkpoint)
    import torch

    with Dumper() as dumper, torch.no_grad():
        dumper.analyse_layer_output(loaded, match_pattern=match)
        run_batch(loaded, arguments)
        analysis = dumper.result if log is None else dumper.save_out_analyse_log(str(log))
    _show(analysis, advise(loaded, arguments), worst, as_json=as_json, as_csv=as_csv)
    if plots is not None:
        _plot(loaded, plots, arguments, worst)


def _show(analysis: Analysis, advice: Advice, worst: int, *, as_json: bool, as_csv: bool) -> None:
    if as_csv:
        typer.echo(analysis.to_csv(), nl=False)
        return
    if as_json:
        content = {"rows": json.loads(analysis.to_json()), "advice": json.loads(advice.to_json())}
        say_result("analyse", content)
        return
    worst_advice = advice.worst(worst)
    for table in [analysis, worst_advice] if worst else [analysis]:
        console().print(table)
    for line in worst_advice.lines:
        say(line)


def _plot(source: Any, folder: Path, inputs: Any, worst: int) -> None:
    from linger.pipeline import plot_tensors

    for path in plot_tensors(source, folder, inputs, count=worst):
        say(f"drawn: {path}", stderr=True)


add_command(analyse, weights, "weights")
add_command(analyse, layers, "layers")
