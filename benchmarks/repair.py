# SPDX-License-Identifier: Apache-2.0
"""What a repair costs: CPU time at 1 000, 10 000 and 50 000 nodes, and the peak memory of repairing a 2.7 GB model.

The bars: an exponent of at most 1.15, 10 000 nodes in less than 2.5 s, less than 300 MB.

Every graph is damaged throughout: Dequants missing, doubled, misplaced and at wrong scales, Identities, nodes out of order.
Sizes are measured in turn in one run, process CPU time, medians. Loading from bytes and writing to bytes count.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
from interleaved import medians

import linger

SIZES = (1_000, 10_000, 50_000)
LARGEST_EXPONENT = 1.15
SECONDS_AT_10_000 = 2.5
LARGEST_MB = 300
LAYERS, SIDE = 27, 10_000
"""27 weights of 10 000 × 10 000 int8: 2.7 GB."""


class Builder:
    """Nodes one after the other, tensors named in order."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def node(self, op_type: str, *inputs: ir.Value, domain: str = "", **attributes: object) -> ir.Value:
        """A node and its result."""
        made = ir.Node(domain, op_type, inputs, [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()])
        made.outputs[0].name = f"t{len(self.nodes)}"
        self.nodes.append(made)
        return made.outputs[0]

    def quant(self, x: ir.Value) -> ir.Value:
        """A Quant at scale 16."""
        return self.node("Quant", x, domain="thinker", data_bits=8, scale_x=16.0)

    def dequant(self, x: ir.Value, scale: float) -> ir.Value:
        """A Dequant."""
        return self.node("Dequant", x, domain="thinker", scale_o=scale)

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """A sum of integers at scale 16."""
        return self.node("iqAdd", x, y, domain="thinker", scale_x=16.0, scale_y=16.0, scale_o=16.0)


def damaged_graph(count: int) -> bytes:
    """About `count` nodes, a third of them wrong in some way, in a random order."""
    build = Builder()
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 8]))
    before = build.quant(x)
    while len(build.nodes) < count:
        moved = build.node("Identity", build.node("Relu", before))
        both = build.add(moved, before)
        wrong, twin = build.dequant(both, 8.0), build.dequant(both, 16.0)
        real = build.node("Add", build.node("Tanh", both), build.node("Sigmoid", twin))
        before = build.add(build.quant(real), build.node("Relu", wrong))
    before.type = ir.TensorType(ir.DataType.FLOAT)
    random.Random(count).shuffle(build.nodes)
    graph = ir.Graph([x], [before], nodes=build.nodes, opset_imports={"": 12, "thinker": 1}, name="damaged")
    content: bytes = ir.to_proto(ir.Model(graph, ir_version=6)).SerializeToString()
    return content


def repair(content: bytes) -> int:
    made = linger.repair(content)
    assert made.ok
    return len(ir.to_proto(made.model).SerializeToString())


def measure_time(rounds: int) -> bool:
    graphs = {count: damaged_graph(count) for count in SIZES}
    times = medians({str(n): lambda c=c: repair(c) for n, c in graphs.items()}, rounds=rounds, warm_up=1)
    for name, seconds in times.items():
        print(f"{int(name):6d} nodes: {seconds:6.2f} s, {seconds / int(name) * 1e6:5.0f} µs per node")
    small, middle, large = (times[str(n)] for n in SIZES)
    exponent = math.log(large / small) / math.log(SIZES[-1] / SIZES[0])
    print(f"exponent {exponent:.2f} (bar {LARGEST_EXPONENT}); 10 000 nodes in {middle:.2f} s (bar {SECONDS_AT_10_000})")
    return exponent <= LARGEST_EXPONENT and middle <= SECONDS_AT_10_000


def write_large_model(path: Path) -> None:
    """Linear layers whose weights lie in a data file, with the Dequant before the last one instead of behind it."""
    data = path.with_name("weights.bin")
    with data.open("wb") as file:
        for layer in range(LAYERS):
            file.write(np.full((SIDE, SIDE), layer % 5 - 2, np.int8).tobytes())
    build = Builder()
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, SIDE]))
    last = build.quant(x)
    weights = []
    for layer in range(LAYERS):
        size = SIDE * SIDE
        tensor = ir.ExternalTensor(
            data.name,
            layer * size,
            size,
            ir.DataType.INT8,
            shape=ir.Shape([SIDE, SIDE]),
            name=f"w{layer}",
            base_dir=path.parent,
        )
        weights.append(
            ir.Value(name=f"w{layer}", type=ir.TensorType(ir.DataType.INT8), shape=tensor.shape, const_value=tensor)
        )
        last = build.dequant(last, 16.0) if layer == LAYERS - 1 else last
        last = build.node(
            "LinearInt", last, weights[-1], domain="thinker",
            data_bits=8, parameter_bits=8, o_bits=8, scale_x=16.0, scale_w=64.0, scale_o=16.0,
        )  # fmt: skip
    last.type = ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(
        [x], [last], nodes=build.nodes, initializers=weights, opset_imports={"": 12, "thinker": 1}, name="large"
    )
    ir.save(ir.Model(graph, ir_version=8), path)


def measure_memory() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.onnx"
        write_large_model(path)
        size = sum(p.stat().st_size for p in Path(folder).iterdir()) / 1e9
        call = f"""import linger
made = linger.repair({str(path)!r})
assert made.ok and len(made.changes) >= 3, made
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))"""
        done = subprocess.run([sys.executable, "-c", call], check=True, capture_output=True, text=True)
        written = sum(p.stat().st_size for p in Path(folder).glob("large_fix*")) / 1e9
    peak = int(done.stdout) / 1024  # its own: what the system counts for children begins with their parent's memory
    print(
        f"a {size:.1f} GB model, repaired and written ({written:.1f} GB): peak memory {peak:.0f} MB (bar {LARGEST_MB})"
    )
    return peak <= LARGEST_MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    verdicts = [measure_time(options.rounds), measure_memory()]
    print("within the bars" if all(verdicts) else "ABOVE a bar")


if __name__ == "__main__":
    main()
