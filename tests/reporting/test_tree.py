"""A model as a tree."""

import io

import onnx
import pytest
from rich.console import Console

from linger.graph.files.summary import limited, summarize
from linger.reporting.printed import format_bytes, model_tree
from tests.graph.files.test_summary import TEXT


def shown(what):
    out = io.StringIO()
    Console(file=out, width=160).print(what)
    return out.getvalue()


@pytest.fixture
def summary(tmp_path):
    proto = onnx.parser.parse_model(TEXT)
    proto.producer_name, proto.model_version = "maker", 3
    proto.metadata_props.add(key="note", value="here")
    onnx.save(proto, tmp_path / "m.onnx")
    return summarize(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 bytes"), (1, "1 byte"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_999, "1.0 MB"), (2_871_952, "2.9 MB"), (3e9, "3.0 GB"), (5e15, "5000.0 TB"), (None, "unknown size")],
)  # fmt: skip
def test_sizes_can_be_read(count, expected):
    assert format_bytes(count) == expected


def test_everything_is_in_the_tree(summary):
    lines = [line.lstrip("│├└─ ").rstrip() for line in shown(model_tree(summary)).splitlines()]
    for expected in (
        "producer maker",
        "model version 3",
        "opsets ai.onnx 17, my 1",
        "note here",
        "graph g",
        "x  float[n,3]  dynamic: n",
        "y  float[n,?]  dynamic: n, ?",
        "initializers (2, 16 bytes)",
        "w  float[3]  12 bytes",
        "nodes (4) Add ×1, Constant ×1, If ×1, my::twice ×1",
        "Add  first",
        "x, w → a",
        "my::twice",
        "factor float = 2",
        "(nothing) → c",
        "value tensor = bool [True]",
        "then_branch t",
        "value infos (1)",
        "functions (1)",
        "my::twice (x) → y",
        "attributes factor",
        "nodes (2) Constant ×1, Mul ×1",
    ):
        assert expected in lines, expected


def test_what_is_cut_is_counted(summary):
    text = shown(model_tree(limited(summary, items=1)))
    assert "… 3 more" in text
    assert "… 1 more" in text
    counts = shown(model_tree(limited(summary, depth=0)))
    assert "nodes (4) Add ×1" in counts
    assert "more" not in counts
    assert "first" not in counts


def test_names_are_neither_markup_nor_commands_to_the_terminal(tmp_path):
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
    )
    proto.graph.node[0].name = "[red]evil[/red]\x1b[2J\n"
    onnx.save(proto, tmp_path / "m.onnx")
    text = shown(model_tree(summarize(tmp_path / "m.onnx")))
    assert r"Neg  [red]evil[/red]\x1b[2J\n" in text
    assert "\x1b" not in text


def test_data_files_and_inputs_left_out(tmp_path):
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Clip(x, "", x) }'
    proto = onnx.parser.parse_model(text)
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[1000], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    onnx.save(proto, tmp_path / "m.onnx")
    shown_text = shown(model_tree(summarize(tmp_path / "m.onnx")))
    assert "w.bin  missing" in shown_text
    assert "w  float[1000]  4.0 kB in w.bin" in shown_text
    assert "x, (none), x → y" in shown_text
