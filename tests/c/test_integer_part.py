"""A file with float ops as C: where the integer part begins and ends, and that its integers are the file's."""

import json

import numpy as np
import pytest

from linger.c import build, export, prove
from linger.c.integer_part import find_cut
from linger.errors import UnsupportedError, UsageError
from linger.runtime.reference import Reference
from tests.support.c_compiler import require_compiler
from tests.support.dialect_text import quantizing

EDGES = {"inputs": "float[2,4] x", "outputs": "float[2,4] y"}
MUL = "thinker.iqMul <scale_x: float = {0}.0, scale_y: float = {0}.0, scale_o: float = {0}.0>"
BEHIND = "q = Q16(x)\n a = ADD16(q, q)\n d = DQ16(a)\n y = Softmax <axis = 1> (d)"
BEFORE = "f = Sigmoid (x)\n q = Q16(f)\n a = ADD16(q, q)\n y = DQ16(a)"
BETWEEN = f"""
    q = Q16(x)
    a = ADD16(q, q)
    d = DQ16(a)
    f = Softmax <axis = 1> (d)
    r = Q64(f)
    s = {MUL.format(64)} (r, r)
    t = {MUL.format(64)} (s, r)
    y = DQ64(t)
"""
MOVED = "q = Q16(x)\n a = ADD16(q, q)\n d = DQ16(a)\n m = Transpose <perm = [1, 0]> (d)\n y = Exp (m)"
ADDED = f"f = Sigmoid (x)\n q = Q16(f)\n r = Q16(x)\n a = ADD16(q, r)\n s = {MUL.format(16)} (a, a)\n y = DQ16(s)"


@pytest.mark.parametrize(
    ("body", "outputs", "inputs", "ends", "outside"),
    [
        (BEHIND, "float[2,4] y", ("x",), ("d",), ("Softmax",)),
        (BEFORE, "float[2,4] y", ("f",), ("y",), ("Sigmoid",)),
        (BETWEEN, "float[2,4] y", ("f",), ("y",), ("Quant", "iqAdd", "Dequant", "Softmax")),  # two products, one sum
        (MOVED, "float[4,2] y", ("x",), ("d",), ("Transpose", "Exp")),  # what is only moved is left to the caller
        (ADDED, "float[2,4] y", ("f", "x"), ("y",), ("Sigmoid",)),  # both Quants belong to it
    ],
    ids=["behind", "before", "between", "moved", "added"],
)
def test_where_the_integer_part_begins_and_ends(body, outputs, inputs, ends, outside):
    cut = find_cut(quantizing(body, inputs="float[2,4] x", outputs=outputs))
    assert (cut.inputs, cut.outputs) == (inputs, ends)
    assert len(cut.outside) == len(outside)
    assert all(op in node for op, node in zip(outside, cut.outside, strict=True))


def test_the_part_with_the_most_products_is_taken():
    """One layer with weights outweighs two sums."""
    body = """
        q = Q16(x)
        l = thinker.LinearInt <data_bits: int = 8, parameter_bits: int = 8, o_bits: int = 8,
            scale_x: float = 16.0, scale_w: float = 16.0, scale_o: float = 16.0> (q, w, b)
        d = DQ16(l)
        f = Exp (d)
        r = Q16(f)
        s = ADD16(r, r)
        t = ADD16(s, s)
        y = DQ16(t)
    """
    extra = "<int8[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}, int32[4] b = {1,2,3,4}>"
    assert find_cut(quantizing(body, **EDGES, extra=extra)).outputs == ("d",)


def test_a_file_without_float_ops_is_not_cut(tmp_path):
    model = quantizing("q = Q16(x)\n y = DQ16(q)", **EDGES)
    assert find_cut(model) is None
    folder = export(model, tmp_path / "c", cut=True, name="net")
    assert "cut" not in json.loads((folder / "manifest.json").read_text())


def test_a_file_without_integers_has_no_part():
    with pytest.raises(UnsupportedError, match="no node computes with integers"):
        find_cut(quantizing("y = Exp (x)", **EDGES))


def test_without_cut_the_refusal_names_it(tmp_path):
    with pytest.raises(UnsupportedError, match=r"these are not quantized ops: .*Softmax.*exported with cut=True"):
        export(quantizing(BEHIND, **EDGES), tmp_path / "c", name="net")


def test_a_stream_is_not_cut(tmp_path):
    with pytest.raises(UsageError, match="cut and stream exclude each other"):
        export(quantizing(BEHIND, **EDGES), tmp_path / "c", name="net", cut=True, stream=1)


@pytest.mark.parametrize("body", [BEHIND, BETWEEN], ids=["behind", "between"])
def test_the_part_has_the_integers_of_the_whole_file(tmp_path, body):
    require_compiler()
    model = quantizing(body, **EDGES)
    folder = export(model, tmp_path / "c", name="net", cut=True)
    with build(folder) as program:
        proof = prove(program, model, [{"x": np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)}])
        assert proof.ok, proof.summary()
        assert prove(program, model, samples=2).ok
        x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
        whole = {"x": x, **Reference(model).intermediates({"x": x})}
        cut = find_cut(model)
        (given,) = program.run(None, {name: whole[name] for name in cut.inputs})
        assert np.array_equal(given, whole[cut.outputs[0]])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["cut"] == {
        "inputs": list(cut.inputs),
        "outputs": list(cut.outputs),
        "outside": list(cut.outside),
    }
    readme = (folder / "README.md").read_text()
    for text in ("## A part of the file", *cut.inputs, *cut.outputs, *cut.outside):
        assert text in readme
    assert "It is a part of that file" in (folder / "net.h").read_text()


def test_the_edges_are_named_as_the_file_names_them(tmp_path):
    """Names of torch have slashes."""
    model = quantizing(BEFORE, **EDGES)
    next(value for node in model.graph for value in node.outputs if value.name == "f").name = "/gate/Sigmoid_output_0"
    readme = (export(model, tmp_path / "c", name="net", cut=True) / "README.md").read_text()
    assert "| `gate_sigmoid_output_0` | `/gate/Sigmoid_output_0` | taken |" in readme
    assert "| `gate_sigmoid_output_0` | `/gate/Sigmoid_output_0` | 2 x 4 |" in readme
    assert "1 node of the file stays outside: ops in float, which have no C" in readme


def test_a_damaged_cut_is_named(tmp_path):
    folder = export(quantizing(BEHIND, **EDGES), tmp_path / "c", name="net", cut=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["cut"]["inputs"] = 3
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=r"cut\.inputs is not a list"):
        build(folder)
