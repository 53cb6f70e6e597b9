"""Files that somebody damaged, or made to do harm: each maker writes one into a folder and returns its path."""

import gzip
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

Maker = Callable[[Path], Path]
HEAD = '<ir_version: 8, opset_import: ["": 17, "thinker": 1]>'
DIALECT = f"""{HEAD}
g (float[2,4] x) => (float[2,3] y) <int8[3,4] w = {{1,2,3,4,5,6,7,8,9,10,11,12}}, int32[3] b = {{1,2,3}}> {{
  q = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x)
  h = thinker.LinearInt <scale_x: float = 16.0, scale_w: float = 32.0, scale_o: float = 8.0, data_bits: int = 8,
                         parameter_bits: int = 8, o_bits: int = 8> (q, w, b)
  y = thinker.Dequant <scale_o: float = 8.0> (h)
}}"""
LARGE = 2**40


def dialect() -> onnx.ModelProto:
    """A small sound model: Quant, LinearInt, Dequant."""
    return onnx.parser.parse_model(DIALECT)


def plain(body: str, *, inputs: str = "float[n] x", outputs: str = "float[n] y", extra: str = "") -> onnx.ModelProto:
    """A standard model from the text of its nodes."""
    return onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {extra} {{ {body} }}")


def saved(folder: Path, content: onnx.ModelProto | bytes) -> Path:
    """The content as a file."""
    path = folder / "m.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    return path


def _bytes(change: Callable[[bytes], bytes]) -> Maker:
    return lambda folder: saved(folder, change(dialect().SerializeToString()))


def _changed(change: Callable[[onnx.ModelProto], object]) -> Maker:
    def make(folder: Path) -> Path:
        proto = dialect()
        change(proto)
        return saved(folder, proto)

    return make


def _text(body: str, **parts: str) -> Maker:
    return lambda folder: saved(folder, plain(body, **parts))


# --- what is no model at all


def _zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "m.onnx", "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    return folder / "m.onnx"


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "m.onnx")
    return folder / "m.onnx"


def _device(folder: Path) -> Path:
    (folder / "m.onnx").symlink_to("/dev/zero")
    return folder / "m.onnx"


def _sparse_file(folder: Path) -> Path:
    with (folder / "m.onnx").open("wb") as file:
        file.truncate(2**40)
    return folder / "m.onnx"


def _folder(folder: Path) -> Path:
    (folder / "m.onnx").mkdir()
    return folder / "m.onnx"


def _loop_of_links(folder: Path) -> Path:
    (folder / "m.onnx").symlink_to(folder / "m.onnx")
    return folder / "m.onnx"


NO_MODEL: dict[str, Maker] = {
    "empty": _bytes(lambda b: b""),
    "one byte": _bytes(lambda b: b[:1]),
    "truncated": _bytes(lambda b: b[: len(b) // 2]),
    "last byte missing": _bytes(lambda b: b[:-1]),
    "random bytes": _bytes(lambda b: np.random.default_rng(1).bytes(4000)),
    "zeros": _bytes(lambda b: bytes(4000)),
    "text": _bytes(lambda b: DIALECT.encode()),
    "gzip": _bytes(gzip.compress),
    "zip of a checkpoint": _zip,
    "pickle": _bytes(lambda b: b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s."),
    "a length beyond the file": _bytes(lambda b: b + b"\x3a\xff\xff\xff\xff\x07"),
    "missing": lambda folder: folder / "m.onnx",
    "a name too long": lambda folder: folder / ("m" * 5000),
    "a name with a zero byte": lambda folder: folder / "m\0.onnx",
    "a folder": _folder,
    "a fifo": _fifo,
    "a device": _device,
    "a link to itself": _loop_of_links,
    "a terabyte of nothing": _sparse_file,
}


# --- fields that lie


def _initializer(**fields: object) -> Maker:
    """The weight's fields, replaced."""

    def change(proto: onnx.ModelProto) -> None:
        weight = proto.graph.initializer[0]
        for name, value in fields.items():
            weight.ClearField(name)
            if isinstance(value, (list, tuple)):
                getattr(weight, name).extend(value)
            else:
                setattr(weight, name, value)

    return _changed(change)


def _sparse_initializer(proto: onnx.ModelProto) -> None:
    dense = proto.graph.initializer[0]
    sparse = proto.graph.sparse_initializer.add(dims=[LARGE, LARGE])
    sparse.values.CopyFrom(dense)
    sparse.values.name = "w2"
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.arange(12)))


def _rename_bytes(old: bytes, new: bytes) -> Maker:
    assert len(old) == len(new)
    return _bytes(lambda b: b.replace(old, new))


def _second_opset(domain: str, version: int) -> Maker:
    return _changed(lambda p: p.opset_import.add(domain=domain, version=version))


def _huge_shape(proto: onnx.ModelProto) -> None:
    shape = proto.graph.input[0].type.tensor_type.shape
    for _ in range(1_000_000):
        shape.dim.add(dim_value=1)


def _negative_dim(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -3


def _no_body(proto: onnx.ModelProto) -> None:
    proto.functions.add(domain="my", name="f", input=["a"], output=["b"]).opset_import.add(domain="", version=17)
    proto.opset_import.add(domain="my", version=1)
    proto.graph.node[-1].output[0] = "before"
    proto.graph.node.add(domain="my", op_type="f", input=["before"], output=["y"])


def _strange_element(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = 999


LYING: dict[str, Maker] = {
    "dims of 2^40": _initializer(dims=[LARGE]),
    "dims of 2^40 and no data": _initializer(dims=[LARGE, LARGE, LARGE], int32_data=[]),
    "negative dims": _initializer(dims=[-3, -4]),
    "one negative dim": _initializer(dims=[3, -4]),
    "a million dims": _initializer(dims=[1] * 1_000_000),
    "a million large dims": _initializer(dims=[LARGE] * 1_000_000),
    "too little raw data": _initializer(int32_data=[], raw_data=b"12345"),
    "too much raw data": _initializer(int32_data=[], raw_data=bytes(13)),
    "too many items": _initializer(int32_data=list(range(13))),
    "data in the wrong field": _initializer(int32_data=[], float_data=[1.0] * 12),
    "element type 999": _initializer(data_type=999),
    "element type 0": _initializer(data_type=0),
    "element type 999 of an input": _changed(_strange_element),
    "strings as weights": _initializer(data_type=8, int32_data=[], string_data=[b"a"] * 12),
    "sparse initializer": _changed(_sparse_initializer),
    "an input of a million dims": _changed(_huge_shape),
    "an input with a negative dim": _changed(_negative_dim),
    "invalid UTF-8 in an op type": _rename_bytes(b"LinearInt", b"Linear\xff\xfet"),
    "invalid UTF-8 in a domain": _rename_bytes(b"thinker", b"think\xff\xfe"),
    "a second opset": _second_opset("", 11),
    "a second opset by the other name": _second_opset("ai.onnx", 11),
    "an opset of -1": _changed(lambda p: setattr(p.opset_import[0], "version", -1)),
    "an opset of 2^40": _changed(lambda p: setattr(p.opset_import[0], "version", LARGE)),
    "no opset": _changed(lambda p: p.ClearField("opset_import")),
    "no graph": _changed(lambda p: p.ClearField("graph")),
    "no nodes": _changed(lambda p: p.graph.ClearField("node")),
    "no outputs": _changed(lambda p: p.graph.ClearField("output")),
    "no inputs": _changed(lambda p: p.graph.ClearField("input")),
    "no types": _changed(lambda p: p.graph.input[0].ClearField("type")),
    "a node without a type": _changed(lambda p: p.graph.node[1].ClearField("op_type")),
    "a node without outputs": _changed(lambda p: p.graph.node[1].ClearField("output")),
    "a node without inputs": _changed(lambda p: p.graph.node[1].ClearField("input")),
    "an attribute without a type": _changed(lambda p: p.graph.node[1].attribute[0].ClearField("type")),
    "an attribute without a name": _changed(lambda p: p.graph.node[1].attribute[0].ClearField("name")),
    "an initializer without a name": _changed(lambda p: p.graph.initializer[0].ClearField("name")),
    "an output that nothing makes": _changed(lambda p: p.graph.output.add(name="nothing")),
    "an input that nothing makes": _changed(lambda p: p.graph.node[1].input.__setitem__(0, "nothing")),
    "an output twice": _changed(lambda p: p.graph.output.add().CopyFrom(p.graph.output[0])),
    "an initializer twice": _changed(lambda p: p.graph.initializer.add().CopyFrom(p.graph.initializer[0])),
    "two makers of one tensor": _changed(lambda p: p.graph.node.add().CopyFrom(p.graph.node[1])),
    "a function without a body": _changed(_no_body),
    "a name of 20 MB": _changed(lambda p: setattr(p.graph.node[1], "name", "n" * 20_000_000)),
}


# --- attributes of the wrong kind


def _attribute(name: str, value: object, *, node: int = 1) -> Maker:
    """One attribute of a dialect node, replaced (None: removed)."""

    def change(proto: onnx.ModelProto) -> None:
        attributes = proto.graph.node[node].attribute
        kept = [a for a in attributes if a.name != name]
        del attributes[:]
        attributes.extend(kept)
        if value is not None:
            attributes.append(onnx.helper.make_attribute(name, value))

    return _changed(change)


ATTRIBUTES: dict[str, Maker] = {
    "scale missing": _attribute("scale_o", None),
    "scale of zero": _attribute("scale_o", 0.0),
    "scale not a number": _attribute("scale_o", float("nan")),
    "scale infinite": _attribute("scale_o", float("inf")),
    "scale negative": _attribute("scale_o", -8.0),
    "scale denormal": _attribute("scale_x", 1e-42),
    "scale a text": _attribute("scale_o", "8"),
    "scale an integer": _attribute("scale_o", 8),
    "scale a list": _attribute("scale_o", [8.0, 8.0]),
    "scale a tensor": _attribute("scale_o", onnx.numpy_helper.from_array(np.float32([8]))),
    "bits negative": _attribute("o_bits", -8),
    "bits 2^40": _attribute("o_bits", LARGE),
    "bits a float": _attribute("o_bits", 8.5),
    "a Dequant without scale": _attribute("scale_o", None, node=2),
    "a Dequant of scale zero": _attribute("scale_o", 0.0, node=2),
    "a Quant of scale zero": _attribute("scale_x", 0.0, node=0),
    "a Quant of no number": _attribute("scale_x", float("nan"), node=0),
    "platform a number": _attribute("platform", 7),
    "platform unknown": _attribute("platform", "nowhere"),  # LinearInt computes the same on every chip
    "platform unknown, of a curve": _text(
        "q = thinker.Quant <data_bits: int = 16, scale_x: float = 2048.0> (x) y = thinker.iqTanh "
        '<platform: string = "nowhere", scale_x: float = 2048.0, scale_o: float = 128.0> (q)',
        inputs="float[4] x",
        outputs="int8[4] y",
    ),
    "arithmetic unknown": _attribute("platform_quant", "nowhere"),
    "rounding unknown": _attribute("quant_mode", "nowhere"),
    "kernel_shape floats": _text(
        "q = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x) "
        "y = thinker.AvgPool2dInt <kernel_shape: floats = [2.5, 2.0], strides: ints = [2, 2], pads: ints = [0, 0, 0, 0],"
        " ceil_mode: int = 0, scale_x: float = 16.0, scale_o: float = 16.0, data_bits: int = 8, o_bits: int = 8> (q)",
        inputs="float[1,1,4,4] x",
        outputs="int8[1,1,2,2] y",
    ),
    "kernel_shape of 2^40": _text(
        "q = thinker.Quant <data_bits: int = 8, scale_x: float = 16.0> (x) "
        "y = thinker.AvgPool2dInt <kernel_shape: ints = [1099511627776, 1099511627776], strides: ints = [0, -2],"
        " pads: ints = [1099511627776, 0, 0, 0], ceil_mode: int = 0, scale_x: float = 16.0, scale_o: float = 16.0,"
        " data_bits: int = 8, o_bits: int = 8> (q)",
        inputs="float[1,1,4,4] x",
        outputs="int8[1,1,2,2] y",
    ),
    "an unknown op": _changed(lambda p: setattr(p.graph.node[1], "op_type", "Nothing")),
    "too many inputs": _changed(lambda p: p.graph.node[1].input.extend(["x"] * 20)),
}


# --- graphs without an end


def _cycle(folder: Path) -> Path:
    return saved(folder, plain("a = Add(x, c) b = Neg(a) c = Abs(b) y = Exp(c)"))


def _self_cycle(folder: Path) -> Path:
    return saved(folder, plain("a = Add(x, a) y = Exp(a)"))


def _cycle_through_branch(folder: Path) -> Path:
    return saved(
        folder,
        plain(
            "y = If(c)<then_branch = t () => (float[n] p) { p = Neg(z) }, else_branch = e () => (float[n] q) { q = Neg(x) }>"
            " z = Abs(y)",
            inputs="float[n] x, bool c",
        ),
    )


def _functions(*texts: str, calls: str = "y = my.f0(x)") -> Maker:
    bodies = "".join(f'<domain: "my", opset_import: ["": 17, "my": 1]> {text}' for text in texts)
    return lambda folder: saved(
        folder,
        onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[n] x) => (float[n] y) {{ {calls} }} {bodies}'
        ),
    )


def _exploding(levels: int) -> Maker:
    texts = [f"f{i} (a) => (b) {{ c = my.f{i + 1}(a) b = my.f{i + 1}(c) }}" for i in range(levels)]
    return _functions(*texts, f"f{levels} (a) => (b) {{ b = Neg(a) }}")


def _long_chain_of_calls(levels: int) -> Maker:
    texts = [f"f{i} (a) => (b) {{ b = my.f{i + 1}(a) }}" for i in range(levels)]
    return _functions(*texts, f"f{levels} (a) => (b) {{ b = Neg(a) }}")


def nested(levels: int, op_type: str = "If") -> onnx.ModelProto:
    """If in If in If, or Loop in Loop."""
    proto = plain("y = Abs(x)", inputs="float[n] x, bool c, int64 n_times")
    graph, names = proto.graph, ["y", *(f"y{i}" for i in range(levels))]
    del graph.node[:]
    for level in range(levels):
        inputs = ["c"] if op_type == "If" else ["n_times", "c", "x"]
        node = graph.node.add(op_type=op_type, input=inputs, output=[names[level]])
        for branch in ("then_branch", "else_branch") if op_type == "If" else ("body",):
            graph = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH).g
            graph.name = f"{branch}{level}"
            if op_type == "Loop":
                graph.input.add(name=f"i{level}").type.tensor_type.elem_type = onnx.TensorProto.INT64
                graph.input.add(name=f"go{level}").type.tensor_type.elem_type = onnx.TensorProto.BOOL
                graph.input.add(name=f"v{level}").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
                graph.output.add(name=f"go{level}").type.tensor_type.elem_type = onnx.TensorProto.BOOL
            graph.output.add(name=names[level + 1]).type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            if branch == "then_branch":
                graph.node.add(op_type="Abs", input=["x"], output=[names[level + 1]])
    graph.node.add(op_type="Abs", input=["x"], output=[names[levels]])
    return proto


def _many_empty_nodes(folder: Path) -> Path:
    proto = dialect()
    graph = proto.graph.SerializeToString() + b"\x0a\x00" * 1_000_000
    proto.ClearField("graph")
    size, length = len(graph), b""
    while size >= 128:
        length += bytes([size & 127 | 128])
        size >>= 7
    return saved(folder, proto.SerializeToString() + b"\x3a" + length + bytes([size]) + graph)


def chain(length: int) -> onnx.ModelProto:
    """A long sound model: node after node."""
    proto = plain("y = Abs(x)")
    del proto.graph.node[:]
    for index in range(length):
        last = "y" if index == length - 1 else f"t{index}"
        proto.graph.node.add(op_type="Neg", input=["x" if index == 0 else f"t{index - 1}"], output=[last])
    return proto


def _reversed_chain(folder: Path) -> Path:
    proto = chain(3000)
    nodes = list(proto.graph.node)[::-1]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    return saved(folder, proto)


ENDLESS: dict[str, Maker] = {
    "a cycle": _cycle,
    "a node that feeds itself": _self_cycle,
    "a cycle through a branch": _cycle_through_branch,
    "a function that calls itself": _functions("f0 (a) => (b) { b = my.f0(a) }"),
    "functions that call each other": _functions(
        "f0 (a) => (b) { b = my.f1(a) }", "f1 (a) => (b) { b = my.f2(a) }", "f2 (a) => (b) { b = my.f0(a) }"
    ),
    "a recursive function that nobody calls": _functions("f0 (a) => (b) { b = my.f0(a) }", calls="y = Neg(x)"),
    "functions that double 40 times": _exploding(40),
    "a call chain of 2 000": _long_chain_of_calls(2000),
    "If 40 levels deep": lambda folder: saved(folder, nested(40)),
    "If 1 000 levels deep": lambda folder: saved(folder, nested(1000)),
    "Loop 1 000 levels deep": lambda folder: saved(folder, nested(1000, "Loop")),
    "a million empty nodes": _many_empty_nodes,
}


# --- sizes that only show when the model is run or folded

_SHAPE = "shape = Constant <value = int64[2] {1048576, 1048576}> ()"
_COUNT = "count = Constant <value = int64[1] {1099511627776}> ()"
ENORMOUS: dict[str, Maker] = {
    "ConstantOfShape of a terabyte": _text(f"{_SHAPE} c = ConstantOfShape(shape) s = ReduceSum(c) y = Add(x, s)"),
    "ConstantOfShape of 16 GB": _text(
        "shape = Constant <value = int64[2] {65536, 65536}> () c = ConstantOfShape(shape) s = ReduceSum(c) y = Add(x, s)"
    ),
    "Expand to a terabyte": _text(
        f"{_SHAPE} z = Constant <value = float[1] {{0}}> () c = Expand(z, shape) s = ReduceSum(c) y = Add(x, s)"
    ),
    "Tile to a terabyte": _text(
        f"{_COUNT} z = Constant <value = float[1] {{0}}> () c = Tile(z, count) s = ReduceSum(c) y = Add(x, s)"
    ),
    "Range to a terabyte": _text(
        "a = Constant <value = int64 {0}> () b = Constant <value = int64 {1099511627776}> () d = Constant <value = int64 {1}> ()"
        " r = Range(a, b, d) c = Cast <to: int = 1> (r) s = ReduceSum(c) y = Add(x, s)"
    ),
    "Expand of an input": _text(
        f"{_SHAPE} c = Expand(x, shape) y = ReduceSum(c)", inputs="float[1] x", outputs="float[1,1] y"
    ),
    "an input of 2^40": _text("y = Neg(x)", inputs="float[1099511627776] x", outputs="float[1099511627776] y"),
    "Pad to a terabyte": _text(
        "p = Constant <value = int64[2] {0, 1099511627776}> () c = Pad(x, p) y = ReduceSum(c)",
        inputs="float[2] x",
        outputs="float[1] y",
    ),
    "Resize to a terabyte": _text(
        "e = Constant <value = float[0] {}> () z = Constant <value = int64[4] {1,1,1048576,1048576}> ()"
        " c = Resize(x, e, e, z) y = ReduceSum(c)",
        inputs="float[1,1,2,2] x",
        outputs="float[1,1,1,1] y",
    ),
    "doubled 40 times": _text(
        " ".join(f"t{i + 1} = Concat <axis: int = 0> (t{i}, t{i})" for i in range(40)) + " y = ReduceSum(t40)",
        inputs="float[4] t0",
        outputs="float[1] y",
    ),
}


# --- weights in places where they must not be


def _external(
    location: str, *, offset: object = 0, length: object = 12, prepare: Callable[[Path], object] = lambda f: None
) -> Maker:
    def make(folder: Path) -> Path:
        prepare(folder)
        proto = dialect()
        weight = proto.graph.initializer[0]
        weight.ClearField("int32_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            weight.external_data.add(key=key, value=str(value))
        return saved(folder, proto)

    return make


def _outside(folder: Path) -> Path:
    secret = folder.parent / f"{folder.name}-secret"
    secret.write_bytes(bytes(64))
    return secret


def _inside(folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(64))


EXTERNAL: dict[str, Maker] = {
    "an absolute path": _external("/etc/hostname"),
    "a path upwards": _external("../secret"),
    "a path down and upwards": _external("a/../../secret"),
    "a link outside": _external("link", prepare=lambda f: (f / "link").symlink_to(_outside(f))),
    "a hard link outside": _external("hard", prepare=lambda f: (f / "hard").hardlink_to(_outside(f))),
    "a linked folder": _external("d/w", prepare=lambda f: (f / "d").symlink_to("/etc")),
    "a fifo beside": _external("pipe", prepare=lambda f: os.mkfifo(f / "pipe")),
    "a device behind a link": _external("zero", prepare=lambda f: (f / "zero").symlink_to("/dev/zero")),
    "no file": _external("gone"),
    "the folder itself": _external("."),
    "an empty location": _external(""),
    "a zero byte": _external("w\0.bin"),
    "a location of 5 000 letters": _external("w" * 5000),
    "an offset beyond the file": _external("w.bin", offset=LARGE, prepare=_inside),
    "an offset of 2^100": _external("w.bin", offset=2**100, prepare=_inside),
    "a negative offset": _external("w.bin", offset=-4, prepare=_inside),
    "an offset that is no number": _external("w.bin", offset="four", prepare=_inside),
    "a length beyond the file": _external("w.bin", length=LARGE, prepare=_inside),
    "a negative length": _external("w.bin", length=-12, prepare=_inside),
    "the model itself": _external("m.onnx", offset=10**9),
}

REPAIRABLE: dict[str, Maker] = {
    "a long chain in reverse": _reversed_chain,
    "a long chain": lambda folder: saved(folder, chain(3000)),
    "If 8 levels deep": lambda folder: saved(folder, nested(8)),
    "functions that double 6 times": _exploding(6),
}

HEAVY = frozenset(
    {
        "endless: a call chain of 2 000",
        "endless: a million empty nodes",
        "enormous: doubled 40 times",
        "lying: a million dims",
        "lying: a million large dims",
        "lying: a name of 20 MB",
        "lying: an input of a million dims",
        "sound: a long chain",
        "sound: a long chain in reverse",
    }
)
"""Cases that take a second or more to make or to read."""

ALL = {
    **{f"no model: {name}": make for name, make in NO_MODEL.items()},
    **{f"lying: {name}": make for name, make in LYING.items()},
    **{f"attribute: {name}": make for name, make in ATTRIBUTES.items()},
    **{f"endless: {name}": make for name, make in ENDLESS.items()},
    **{f"enormous: {name}": make for name, make in ENORMOUS.items()},
    **{f"external: {name}": make for name, make in EXTERNAL.items()},
    **{f"sound: {name}": make for name, make in REPAIRABLE.items()},
}
