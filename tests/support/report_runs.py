"""Runs that a report shows: a small network, one of 500 layers, hostile names, one of which nothing is known, two side by side."""

import dataclasses
import math

import numpy as np

from linger.reporting.facts import (
    Bins,
    Block,
    FindingFacts,
    LayerFacts,
    MemoryFacts,
    Proof,
    Quality,
    Run,
    SensitivityFacts,
    TensorFacts,
    TriedStep,
    Tuning,
)

HOSTILE_NAMES = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"quoted\" 'name' & `more`",
    "\u202eltr\u202c \u200frtl\u2028line",
    "long" * 75,
    "{{data}}",
    "inf",
    "\\u003c\n\t",
    "__proto__",
    "constructor",
)


def bins(draw, *, scale, spread, count, bins_of=2, noise=0.0):
    """A histogram of normal numbers on a grid of 8 bits, each bin a few steps wide."""
    values = draw.normal(0, spread, count)
    values = np.clip(np.round(values * scale), -128, 127) / scale if not noise else values
    step = bins_of / scale
    low = (math.floor(values.min() / step)) * step
    high = max(values.max() + step / 2, low + step)
    counts, _ = np.histogram(values, bins=np.arange(low, high + step, step))
    return Bins(float(low), step, tuple(int(c) for c in counts))


def tensor(draw, name, layer, *, scale=32.0, role="activation", shape="1×16×14×14", spread=1.0, sqnr=None):
    whole = int(8 - 1 - math.log2(scale))
    return TensorFacts(
        name=name,
        layer=layer,
        role=role,
        shape=shape,
        dtype="int8",
        bits=8,
        scale=scale,
        q_format=f"Q{whole}.{int(math.log2(scale))}",
        low=-128 / scale,
        high=127 / scale,
        distinct=231,
        clipped=0.0042,
        sqnr_db=sqnr,
        values=bins(draw, scale=scale, spread=spread, count=4000),
        reference=bins(draw, scale=scale, spread=spread * 1.05, count=4000, noise=1.0) if role != "weight" else None,
    )


ADVICE = "The range is set by a few large values: equalize the channels, or give this layer 16 bits."


def layer(index, name, op, *, inputs, outputs, sqnr, runs_as="integer", macs=0, weight_bytes=0, live=20_000, advice=()):
    is_integer = runs_as == "integer"
    return LayerFacts(
        name=name,
        path=name.rpartition("/")[0].replace("/", "."),
        op=op,
        runs_as=runs_as,
        inputs=inputs,
        outputs=outputs,
        shape="1×16×14×14",
        bits="8/8/8" if weight_bytes else "8" if is_integer else "",
        x_format="Q2.5" if is_integer else "",
        w_format="Q0.7" if weight_bytes else "",
        o_format="Q2.5" if is_integer else "",
        sqnr_db=sqnr,
        born_db=None if sqnr is None else sqnr + 4.0,
        passed_db=None if sqnr is None else sqnr + 1.5,
        verdict="" if sqnr is None else "born" if index % 3 == 1 else "passed",
        clipped=0.0042 * (index % 5),
        macs=macs,
        weight_bytes=weight_bytes,
        live_bytes=live,
        noise_share=0.05,
        float_reason="there is no integer form of this op with these attributes" if runs_as == "float" else "",
        advice=advice,
    )


CHAIN = (
    ("input/quant", "Quant", 0, 0),
    ("features/conv1", "Conv2dInt", 230_400, 432),
    ("features/relu1", "Relu", 0, 0),
    ("features/pool1", "MaxPool", 0, 0),
    ("features/block/conv_a", "Conv2dInt", 903_168, 4_608),
    ("features/block/relu", "Relu", 0, 0),
    ("features/block/conv_b", "Conv2dInt", 903_168, 4_608),
    ("features/block/add", "iqAdd", 0, 0),
    ("features/pool2", "AvgPool2dInt", 0, 0),
    ("flatten", "Reshape", 0, 0),
    ("classifier", "LinearInt", 15_680, 15_680),
    ("output/dequant", "Dequant", 0, 0),
)
SQNR = (48.2, 37.9, 38.0, 38.4, 33.1, 33.4, 24.6, 29.8, 31.2, 31.2, 30.4, 30.4)


def small(name="digits", **changes):
    """A residual CNN: proven, tuned, checked for venus."""
    draw = np.random.default_rng(7)
    layers, tensors = [], [tensor(draw, "image", None, role="input", shape="1×1×28×28", scale=64.0)]
    previous = "image"
    for index, (label, op, macs, weights) in enumerate(CHAIN):
        inputs = (previous, f"{label}.weight") if weights else (previous,)
        if op == "iqAdd":
            inputs = (previous, "features/pool1:0")
        made = f"{label}:0" if index < len(CHAIN) - 1 else "scores"
        runs_as = "moves" if op == "Reshape" else "integer"
        advice = (ADVICE,) if label.endswith("conv_b") else ()
        layers.append(
            layer(
                index,
                label,
                op,
                inputs=inputs,
                outputs=(made,),
                sqnr=SQNR[index],
                runs_as=runs_as,
                macs=macs,
                weight_bytes=weights,
                live=26_000 - 1_700 * index,
                advice=advice,
            )
        )
        if weights:
            tensors.append(
                tensor(
                    draw, f"{label}.weight", None, role="weight", shape="16×16×3×3", scale=128.0, spread=0.2, sqnr=41.0
                )
            )
        role = "output" if made == "scores" else "activation"
        tensors.append(tensor(draw, made, index, role=role, sqnr=SQNR[index], spread=1.3 if index == 6 else 0.8))
        previous = made
    run = Run(
        name=name,
        file=f"{name}.onnx",
        file_bytes=34_112,
        form="dialect",
        target="venus",
        layers=tuple(layers),
        tensors=tuple(tensors),
        quality=(
            Quality("agreement with the float model", 99.4, None, 97.8, "%", 360, "held-out data"),
            Quality("accuracy", 97.5, 97.8, 95.6, "%", 360, "held-out data"),
        ),
        proof=proof(),
        macs=2_052_416,
        weight_bytes=25_328,
        float_weight_bytes=101_312,
        tuning=tuning(),
        sensitivity=sensitivity(),
        findings=(
            FindingFacts(
                "note",
                "channels-of-eight",
                1,
                "features/conv1 (Conv2dInt)",
                "1 input channel fills an eighth of the multiplier.",
                "Give the layer 8 input channels, or leave it: it costs time only.",
            ),
        ),
        memory=memory(),
        command="linger quantize digits.py:net --data digits.npz --target venus --config digits.yaml",
        config="target: venus\nbits:\n  data: 8\n  weights: 8\ntuning:\n  steps: [equalize, biases, rounding]\n",
        notes=("Layer figures are of 8 batches of the held-out data.",),
    )
    return dataclasses.replace(run, **changes)


def proof(**changes):
    whole = Proof(
        is_exact=True,
        summary="Every integer of the file equals those of torch and of the numpy reference.",
        compared=("torch", "numpy", "ONNX Runtime"),
        integers=1_843_200,
        tensors=23,
        batches=8,
        digests={"digits.onnx": "9f2c" * 16, "inputs": "04ab" * 16, "certificate": "77e1" * 16},
        versions={"linger": "2.0", "onnx": "1.23.2", "onnxruntime": "1.31.1", "numpy": "2.4.6", "torch": "2.13.0"},
        cpu="AMD EPYC 7B13 (avx2, no vnni)",
        certificate="digits.certificate.json",
    )
    return dataclasses.replace(whole, **changes)


def tuning():
    return Tuning(
        summary="3 of 5 steps were kept: 27.1 → 31.6 dB on held-out data, in 41 s of CPU time.",
        steps=(
            TriedStep("equalize(channels)", "main", 27.1, 28.9, 96.9, 98.1, 3.2, True, "1.8 dB better"),
            TriedStep("correct_biases()", "main", 28.9, 30.2, 98.1, 98.6, 1.9, True, "1.3 dB better"),
            TriedStep("choose_exponents(kl)", "main", 30.2, 29.4, 98.6, 98.3, 4.4, False, "0.8 dB worse: dropped"),
            TriedStep("round_weights(200)", "main", 30.2, 31.6, 98.6, 99.4, 22.0, True, "1.4 dB better"),
            TriedStep("distill(epochs=1)", "main", 31.6, None, 99.4, None, 9.5, False, "the budget of time was spent"),
        ),
        notes=("Steps were judged on 180 held-out samples.",),
    )


def sensitivity():
    shares = (0.46, 0.21, 0.12, 0.08, 0.04)
    names = (6, 4, 1, 10, 7)
    return tuple(
        SensitivityFacts(CHAIN[n][0], CHAIN[n][1], "8/8/8", 30.0 + 4 * i, share, "weights" if i else "output")
        for i, (n, share) in enumerate(zip(names, shares, strict=True))
    )


def memory():
    """An arena: every block lies in the lowest place that is free for as long as it is needed."""
    steps = tuple(label for label, *_ in CHAIN)
    sizes = (784, 12_544, 12_544, 3_136, 6_272, 6_272, 3_136, 3_136, 784, 784, 40, 40)
    wanted = [("image", 784, 0, 0, "input")]
    for index, (label, size) in enumerate(zip(steps, sizes, strict=True)):
        last = index + 4 if label.endswith("pool1") else min(index + 1, len(steps) - 1)
        wanted.append((f"{label}:0", size, index, last, "output" if index == len(steps) - 1 else "tensor"))
    wanted.append(("columns of conv_a", 2_304, 4, 4, "scratch"))
    blocks = []
    for name, size, first, last, kind in sorted(wanted, key=lambda entry: -entry[1]):
        beside = sorted((b.offset, b.offset + b.bytes) for b in blocks if b.first <= last and first <= b.last)
        offset = 0
        for low, high in beside:
            offset = max(offset, high) if low < offset + size else offset
        blocks.append(Block(name, size, first, last, offset, kind))
    arena = max(block.offset + block.bytes for block in blocks)
    return MemoryFacts(True, steps, tuple(blocks), 25_872, arena, 65_536, "")


def large(count=500):
    """A long network with skips, a few float layers, and every section filled."""
    draw = np.random.default_rng(11)
    layers, tensors = [], [tensor(draw, "image", None, role="input", shape="1×3×224×224")]
    outputs = ["image"]
    for index in range(count):
        kind = index % 4
        op = ("Conv2dInt", "Relu", "iqAdd", "MaxPool")[kind] if index % 97 else "Erf"
        label = f"stages/{index // 40}/block{index // 4 % 10}/{op.lower()}_{index}"
        inputs = [outputs[-1]]
        if op == "iqAdd":
            inputs.append(outputs[-3])
        if index in (200, 210, 220):
            inputs.append(outputs[150 - index // 2])
        if op == "Conv2dInt":
            inputs.append(f"{label}.weight")
            tensors.append(tensor(draw, f"{label}.weight", None, role="weight", scale=128.0, spread=0.2))
        sqnr = float(44 - 30 * index / count + 4 * math.sin(index))
        layers.append(
            layer(
                index,
                label,
                op,
                inputs=tuple(inputs),
                outputs=(f"{label}:0",),
                sqnr=sqnr,
                runs_as="float" if op == "Erf" else "integer",
                macs=1_000_000 + 7_001 * index if op == "Conv2dInt" else 0,
                weight_bytes=9_216 if op == "Conv2dInt" else 0,
                live=200_000 + 1_000 * (index % 37),
                advice=(ADVICE,) if index % 31 == 0 else (),
            )
        )
        tensors.append(tensor(draw, f"{label}:0", index, sqnr=sqnr))
        outputs.append(f"{label}:0")
    blocks = tuple(Block(f"{entry.name}:0", 100_000, i, min(i + 2, count - 1)) for i, entry in enumerate(layers))
    findings = tuple(
        FindingFacts("warning", "window-size", i, layers[i].name, "The window is larger than 5.", "Split it.")
        for i in range(0, count, 3)
    )
    return Run(
        name="large",
        file="large.onnx",
        file_bytes=12_000_000,
        form="standard",
        target="venus",
        layers=tuple(layers),
        tensors=tuple(tensors),
        quality=(Quality("agreement with the float model", 98.2, None, None, "%", 512, "random inputs"),),
        proof=proof(integers=90_000_000),
        macs=sum(entry.macs for entry in layers),
        weight_bytes=11_000_000,
        float_weight_bytes=44_000_000,
        integer_share=0.97,
        sensitivity=tuple(
            SensitivityFacts(entry.name, entry.op, "8", entry.sqnr_db, 1 / count, "output") for entry in layers
        ),
        findings=findings,
        tuning=Tuning(
            "120 steps.",
            tuple(TriedStep(f"step {i}", "main", 20.0, 20.0 + i % 3, is_kept=i % 3 > 0) for i in range(120)),
        ),
        memory=MemoryFacts(False, tuple(entry.name for entry in layers), blocks, 300_000, None, 1_000_000, ""),
    )


def hostile():
    """Every text is one that would break a careless page."""
    draw = np.random.default_rng(3)
    names = HOSTILE_NAMES
    layers = tuple(
        LayerFacts(
            name=name,
            path=name,
            op=name,
            runs_as="float" if index % 2 else "integer",
            inputs=(names[index - 1],) if index else ("x" + name,),
            outputs=(name,),
            shape=name,
            bits=name,
            x_format=name,
            o_format=name,
            sqnr_db=math.inf,
            verdict=name,
            float_reason=name,
            advice=(name,),
        )
        for index, name in enumerate(names)
    )
    tensors = tuple(
        dataclasses.replace(tensor(draw, name, index), shape=name, dtype=name, q_format=name)
        for index, name in enumerate(names)
    )
    worst = names[1]
    return Run(
        name=worst,
        file=names[4],
        form=worst,
        target=worst,
        layers=layers,
        tensors=tensors,
        quality=tuple(Quality(name, 99.5, None, None, name, 1, name) for name in names[:3]),
        proof=proof(
            is_exact=False,
            differing=3,
            summary=worst,
            compared=names,
            first=names[4],
            digests={name: name for name in names},
            versions={name: name for name in names},
            cpu=worst,
            certificate=worst,
        ),
        tuning=Tuning(worst, tuple(TriedStep(name, name, 1.0, 2.0, why=name) for name in names), names),
        sensitivity=tuple(SensitivityFacts(name, name, name, None, 0.1, name) for name in names),
        findings=tuple(FindingFacts(name, name, index, name, name, name) for index, name in enumerate(names)),
        memory=MemoryFacts(
            True,
            names,
            tuple(Block(name, 64, i, i, 64 * i, name) for i, name in enumerate(names)),
            640,
            640,
            None,
            worst,
        ),
        command=worst,
        config=worst * 20,
        notes=names,
    )


def minimal():
    """A run of which nothing but the name is known."""
    return Run(name="unknown")


def pair():
    """The same network twice, the second one without tuning; one layer is called differently."""
    second = small("digits-plain", quality=(Quality("agreement with the float model", 97.8, None, None, "%", 360),))
    layers = [
        dataclasses.replace(entry, sqnr_db=None if entry.sqnr_db is None else entry.sqnr_db - 3.0 - index / 4)
        for index, entry in enumerate(second.layers)
    ]
    layers[5] = dataclasses.replace(layers[5], name="features/block/activation")
    return small(), dataclasses.replace(second, layers=tuple(layers), tuning=None, memory=None)
