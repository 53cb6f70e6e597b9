# SPDX-License-Identifier: Apache-2.0
"""linger quantize: from a float torch model to a proven file and a report, in one command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linger.cli import say, say_result, say_table
from linger.cli.arguments import options
from linger.cli.arguments.options import Chip, Force, ImageOptions, Json, Overwrite, Seed, SoundOptions
from linger.errors import UsageError, counted, listing, refuse_if, refuse_together
from linger.lazy_exports import importing

if TYPE_CHECKING:
    from linger.workflow.delivery import Tell
    from linger.workflow.quantized import Quantized, QuantizeSettings

_SCALES = "unit (0 to 1), byte (0 to 255), signed (-1 to 1), imagenet"
_KEPT = ("out", "c", "cut", "overwrite", "force", "as_json", "quiet", "config", "model")
"""Options that mean the same with --config as without it."""
_FOR_KINDS = {
    **dict.fromkeys(("size", "scale", "mean", "std", "grey"), ("images",)),
    **dict.fromkeys(("rate", "length"), ("sounds",)),
    "shape": ("images", "sounds"),
}
"""Options that are about folders of some kind only."""


def quantize(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help="package.module:name or file.py:name: a float torch model, or a callable that makes one."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Typical inputs: .npz, .npy, a folder of images or of .wav files, or file.py:callable.", metavar="DATA"
        ),
    ] = None,
    test_data: Annotated[
        str | None,
        typer.Option(help="Data to judge by, in the same forms; else one sample in five is held out.", metavar="DATA"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write: a folder; else the model's name and -quantized.")
    ] = None,
    bits: Annotated[str, typer.Option(help="8, 16, mixed, or weights and activations as in w4a8.")] = "8",
    target: Chip = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="What tuning may cost: CPU time, or a number of trials; else 2 to 15 min, by the network's size."
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(help="What is enough: '99 %' of the float model's decisions, or '30 dB'; the search ends there."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="A figure of your own to tune and judge by: file.py:callable, metric(model) -> float, larger is better.",
            metavar="CODE",
        ),
    ] = None,
    input_range: Annotated[
        tuple[float, float] | None,
        typer.Option(help="The lowest and highest number that an input may have, as in 0 1; else what the data show."),
    ] = None,
    per_channel: Annotated[
        bool | None,
        typer.Option(help="One scale of the weights for each output channel; else where the target has it."),
    ] = None,
    unsigned: Annotated[
        bool | None, typer.Option(help="Activations that are never negative as 0 to 255; else where the target has it.")
    ] = None,
    seed: Seed = 0,
    checkpoint: Annotated[Path | None, typer.Option(help="Weights to load into the model.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Repeat a run: the net.yaml that it wrote, with the files beside it.")
    ] = None,
    c: Annotated[
        Path | None, typer.Option(help="The network as C: also write it to this folder, and prove it here.")
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="The form of the file: dialect, bare, standard or qdq; else what the chip takes.")
    ] = None,
    opset: Annotated[int | None, typer.Option(help="The opset of the file, 11 to 20; else 12.")] = None,
    labels: Annotated[
        str, typer.Option(help="An .npy file with the right class of each sample; none: no labels.", metavar="FILE")
    ] = "",
    shape: Annotated[str, typer.Option(help="Sizes of an input: of images, 1x3x224x224, or of sounds, 1x16000.")] = "",
    size: Annotated[str, typer.Option(help="Height and width of images, 224 or 224x320; else as they are.")] = "",
    scale: Annotated[str, typer.Option(help=f"Numbers of a pixel: {_SCALES}.")] = "unit",
    mean: Annotated[
        str | None,
        typer.Option(help="Taken from the numbers of a pixel, one for all channels or one for each: 0.5,0.5,0.5."),
    ] = None,
    std: Annotated[str | None, typer.Option(help="What the numbers are then divided by, in the same way.")] = None,
    rate: Annotated[int | None, typer.Option(help="Samples per second that sounds must have.", min=1)] = None,
    length: Annotated[
        int | None, typer.Option(help="Samples of a window of sound; else whole files, zeros at the end.", min=1)
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples of a batch.", min=1)] = 32,
    limit: Annotated[int | None, typer.Option(help="Use so many samples at most, evenly from all.", min=1)] = None,
    *,
    cut: Annotated[
        bool, typer.Option("--cut", help="Leave float ops outside: write the integer part as C, with --c.")
    ] = False,
    grey: Annotated[bool, typer.Option("--grey", help="Images with one channel.")] = False,
    overwrite: Overwrite = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No lines about the steps.")] = False,
) -> None:
    """Quantize a float model, prove the file bit for bit, and write a report.

    Exit code 1: integers differ, something forbids the chip, or the quality is low, or below its goal; or the program in C is missing.
    Exit code 3: all is well but that tuning gains less, by more than chance, on data by which nothing was chosen.

    Examples:
        linger quantize my_net.py:make_net --data inputs.npz
        linger quantize my_net.py:make_net --data photos --size 224 --scale imagenet --bits mixed
        linger quantize my_net.py:make_net --data my_net.py:data --target venus --c my_net_c
        linger quantize --config my_net-quantized/net.yaml --out again
    """
    from linger.workflow.quantized import QuantizeSettings, require_free

    def tell(line: str) -> None:
        if not quiet and not as_json:
            say(line, stderr=True, style="dim")

    given = _given(context)
    settings = QuantizeSettings(
        bits=bits,
        target=target,
        budget=budget,
        goal=goal,
        seed=seed,
        form=form,
        opset=opset,
        batch=batch,
        input_range=input_range,
        per_channel=per_channel,
        unsigned=unsigned,
        c=c,
        cut=cut,
        force=overwrite or force,
    )
    missing = [name for name, value in (("the model", model), ("--data", data)) if value is None]
    if config is None and missing:
        raise UsageError(
            f"quantize: {listing(missing)} is missing. For example: linger quantize my_net.py:make_net --data inputs.npz."
        )
    out = out or (None if model is None else Path(f"{_name_of(model)}-quantized"))
    files = [checkpoint, config, None if labels in ("", "none") else Path(labels)]
    images = partial(_images, shape, size, scale, mean, std, is_grey=grey, limit=limit)
    sounds = partial(_sounds, shape, rate, length, limit)
    sources = [source for source in (data, test_data) if source is not None]
    about_data: list[Callable[[], object]] = [images, sounds, partial(_require_fitting, given, sources)]
    # refuse, all at once, what can be seen to be wrong without torch, whose import takes seconds
    checks: list[Callable[[], object]] = [
        *settings.checks(has_metric=metric is not None),
        *([] if model is None else [partial(options.require_code, model)]),
        *([] if metric is None else [partial(options.require_code, metric, "metric", options.METRIC)]),
        *(partial(options.require_data, source) for source in sources),
        *(about_data if config is None else []),
        *(partial(options.require_file, file) for file in files if file is not None),
        *([] if out is None else [partial(require_free, out, settings)]),
    ]
    refuse_together(checks)
    tell(f"load {model or config}")  # the imports take seconds
    if config is not None:
        made = _repeated(model, config, out, settings, context, tell)
    else:
        with importing():
            from linger.cli.arguments.data import DataOptions, read_data
            from linger.cli.arguments.model import load_metric, load_model
            from linger.workflow import quantize as job
            from linger.workflow.delivery import RunFile

        assert model is not None and data is not None and out is not None  # noqa: PT018 - refused above
        how = DataOptions(labels=labels, batch=batch, limit=limit, images=images(), sounds=sounds())
        loaded = load_model(model, checkpoint)
        settings = settings if metric is None else replace(settings, metric=load_metric(metric))
        samples = read_data(data, loaded, how)
        test = None if test_data is None else read_data(test_data, loaded, how)
        run = RunFile(model=model, options={key: value for key, value in given.items() if key not in _KEPT})
        made = job.quantize(loaded, samples, out, settings, test=test, run=run, name=out.resolve().name, tell=tell)
    _show(made, as_json=as_json)
    if not made.ok:
        raise typer.Exit(1)
    if made.has_gap:
        raise typer.Exit(3)


def _given(context: typer.Context) -> dict[str, Any]:
    """The options that stand on the command line, by their names, as plain values."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    named = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    values = {name: context.params[name] for name in named}
    texts = {name: " ".join(map(str, value)) for name, value in values.items() if isinstance(value, tuple)}
    return {name: v if isinstance(v, (bool, int)) else str(v) for name, v in values.items()} | texts


def _require_fitting(given: dict[str, Any], sources: list[str]) -> None:
    """Refuse options for images or sounds where the data are something else, all at once."""
    folders = [Path(source) for source in sources if Path(source).is_dir()]
    are_sounds = [any(f.suffix.lower() in options.SOUNDS for f in options.files_in(folder)) for folder in folders]
    fitting = {"images": not all(are_sounds), "sounds": any(are_sounds)}
    other = [
        f"--{name} (for {listing(kinds)})"
        for name, kinds in _FOR_KINDS.items()
        if name in given and not any(fitting[kind] for kind in kinds)
    ]
    refuse_if(
        other,
        f"quantize: {listing(other)} means nothing for {listing(sources)}. Leave it out, and give the data as the model "
        "takes them.",
    )


def _images(
    shape: str, size: str, scale: str, mean: str | None, std: str | None, *, is_grey: bool, limit: int | None
) -> ImageOptions:
    refuse_if(scale not in options.SCALES, f"--scale {scale}: no such range. Use {_SCALES}.")
    sizes = options.read_sizes(size, "--size") if size else ()
    refuse_if(len(sizes) > 2, f"--size {size}: an image has a height and a width, as in 224 or 224x320.")
    if shape and not size:
        sizes = options.read_sizes(shape, "--shape")[-2:]
        is_grey = is_grey or options.read_sizes(shape, "--shape")[-3:-2] == (1,)
    return ImageOptions(
        size=(sizes[0], sizes[-1]) if sizes else None,
        is_grey=is_grey,
        scale=scale,
        mean=options.read_numbers(mean, "--mean"),
        std=options.read_numbers(std, "--std"),
        limit=limit,
    )


def _sounds(shape: str, rate: int | None, length: int | None, limit: int | None) -> SoundOptions:
    sizes = options.read_sizes(shape, "--shape") if shape else ()
    length = length or (sizes[-1] if sizes else None)
    return SoundOptions(rate=rate, length=length, has_channel=len(sizes) > 2, limit=limit)


def _repeated(
    model: str | None, config: Path, out: Path | None, settings: QuantizeSettings, context: typer.Context, tell: Tell
) -> Quantized:
    """A run that is repeated."""
    from linger.cli.arguments.model import load_model
    from linger.workflow import quantize as job
    from linger.workflow.delivery import read_run_file
    from linger.workflow.quantized import require_free

    run = read_run_file(config)
    usual = {option.name: option.default for option in context.command.params}
    other = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in _given(context).items()
        if name not in _KEPT and run.options.get(name, usual[name]) != value
    ]
    refuse_if(
        other,
        f"quantize: {listing(other)} is not what {config} says. Leave it out, or start a new run without --config.",
    )
    named = model or run.model
    if not named:
        raise UsageError(
            f"{config}: it names no model. Give one: linger quantize my_net.py:make_net --config {config}."
        )
    folder = out or Path(f"{_name_of(named)}-quantized")
    require_free(folder, settings)
    return job.repeat(load_model(named), config, folder, settings, run=run, name=folder.resolve().name, tell=tell)


def _name_of(model: str) -> str:
    """How a model is called: the file of the model without its ending, or its name in a package."""
    place, _, name = model.rpartition(":")
    return Path(place).stem if place.endswith(".py") else name or "net"


def _show(made: Quantized, *, as_json: bool) -> None:
    if as_json:
        say_result("quantize", _content(made))
        return
    from linger.reporting.facts import METRIC_DATA, UNSEEN
    from linger.reporting.verdict import figure_text

    cells = [
        (q.name, *("" if value is None else figure_text(q, value) for value in (q.before, q.plain, q.after)))
        for q in made.quality
    ]
    say_table(made.name, ("", "float", "plain", "tuned"), [*cells, *_cost_rows(made)])
    if made.quality:
        first = made.quality[0]
        count = "" if first.samples is None else f" ({counted(first.samples, 'sample')})"
        known = ", by which tuning has chosen" * (first.data == METRIC_DATA)
        known += ", which no step has seen" * (first.data in UNSEEN)
        say(f"Quality is that on {first.data}{count}{known}; plain is calibration without tuning.")
    lines = ["The file is the one of that run, bit for bit."] * made.is_repeated
    lines += [f"Note: {note}" for note in made.notes] + [f"Error: {finding}" for finding in made.check.errors]
    lines.append(made.verdict)
    lines += [] if made.decision is None else [f"  {line}" for line in made.decision.lines()]
    if made.c_cut is not None:
        ends = f"takes {listing(made.c_cut.inputs)} and gives {listing(made.c_cut.outputs)}"
        outside = listing(made.c_cut.outside, limit=5)
        lines.append(
            f"The program in C is a part of the file: it {ends} (README.md there has scales). Outside: {outside}."
        )
    lines += [f"Missing: {made.c_missing}"] if made.c_missing else []
    for line in (*lines, f"{made.folder}: {', '.join(made.files)}"):
        say(line)


def _cost_rows(made: Quantized) -> list[tuple[str, str, str, str]]:
    findings = [counted(count, what) for what, count in made.check.counts().items() if count]
    arena = "there is none" if made.arena_bytes is None else f"{made.arena_bytes:,} bytes"
    chip = "" if made.check.target is None else f" for {made.check.target}"
    rows = [
        ("weights", f"{made.float_bytes:,} bytes", "", f"{made.memory.weight_bytes:,} bytes"),
        ("multiply-accumulates", "", "", f"{'' if made.memory.has_all_macs else '≥ '}{made.memory.macs:,}"),
        ("memory of the program in C", "", "", arena),
        ("stayed float", "", "", listing(made.stayed_float, limit=3) or "nothing"),
        (f"findings{chip}", "", "", ", ".join(findings) or "none"),
        ("integers that differ", "", "", f"{made.proof.differing:,} of {made.proof.integers:,}"),
    ]
    if made.c_proof is not None:
        rows.append(("numbers of C that differ", "", "", f"{made.c_proof.differing:,} of {made.c_proof.elements:,}"))
    return rows


def _content(made: Quantized) -> dict[str, Any]:
    from linger.records.table import picked

    return {
        **picked(made, "name ok verdict reasons"),
        "decision": None if made.decision is None else made.decision.facts(),
        **picked(made, "is_repeated folder files sha256 quality"),
        **picked(made.proof, "integers differing"),
        "findings": made.check.counts(),
        "target": made.check.target,
        "weight_bytes": made.memory.weight_bytes,
        "float_weight_bytes": made.float_bytes,
        **picked(made.memory, "macs has_all_macs"),
        **picked(made, "arena_bytes stayed_float"),
        "c": None if made.c_proof is None else picked(made.c_proof, "differing elements"),
        **picked(made, "c_cut c_missing notes offer"),
    }
