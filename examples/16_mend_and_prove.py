# SPDX-License-Identifier: Apache-2.0
"""A broken file, mended and proven, without torch: check, fix, verify, vectors, compare.

    python examples/16_mend_and_prove.py

The file is what an older exporter wrote: the Dequant of the last layer stands before it instead of behind it, a float op
reads raw integers, a Dequant has a wrong scale, and nodes are out of order. Writes demo-output/broken.onnx, broken_fix.onnx,
certificate.json and vectors/; prints every finding and every change, and a table of the steps.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from rich.console import Console

import linger
from linger.records.rich_table import table

TEXT = """<ir_version: 6, opset_import: ["": 12, "thinker": 1]>
net (float[1,4] x) => (float[1,2] scores, float[1,2] gate)
<int8[2,4] w = {3, -5, 7, 1, 2, 2, -4, 6}, int32[2] b = {10, -20}> {
  [gate] gate = Sigmoid(h)
  [quant] q = thinker.Quant<data_bits = 8, scale_x = 16.0>(x)
  [wrong] d = thinker.Dequant<scale_o = 4.0>(q)
  [fc] h = thinker.LinearInt<data_bits = 8, parameter_bits = 8, o_bits = 8,
                             scale_x = 16.0, scale_w = 4.0, scale_o = 8.0>(d, w, b)
  [act] scores = Relu(h)
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    broken = folder / "broken.onnx"
    broken.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())

    found = linger.check(broken)
    print(found.summary())
    for finding in found.errors:
        print("  ", finding)

    made = linger.fix_dequant(broken, is_check=True)
    print(made.summary())
    for change in made.changes:
        print("  ", change)
    assert made.ok
    assert linger.check(made.path).ok

    x = np.array([[1.0, 0.5, -1.0, 2.0]], np.float32)
    scores, gate = linger.Session(made.path).run(None, {"x": x})
    # q = 16, 8, −16, 32: (3·16 − 5·8 − 7·16 + 1·32 + 10)/8 = −7.75 → −8; (2·16 + 2·8 + 4·16 + 6·32 − 20)/8 = 35.5 → 36
    assert scores.tolist() == [[0.0, 36 / 8]]
    print(f"scores {scores.tolist()}, gate {np.round(gate, 4).tolist()}")

    proof = linger.verify(None, made.path, batches=8, certificate=folder / "certificate.json")
    again = linger.check_certificate(folder / "certificate.json", made.path)

    linger.write_vectors(made.path, folder / "vectors", force=True)
    same = linger.compare(made.path, folder / "vectors")
    assert all(result.ok for result in (proof, again, same))
    rows = [
        ["check", found.summary()],
        ["fix", f"{len(made.changes)} changes"],
        ["check again", linger.check(made.path).summary()],
        ["verify", proof.summary()],
        ["certificate", "holds" if again.ok else "does not hold"],
        ["vectors for the board", same.summary()],
    ]
    Console().print(table("from broken to proven", ("step", "result"), rows))


if __name__ == "__main__":
    main()
