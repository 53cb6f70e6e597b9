"""What a program in C needs: numbers worked out by hand, refusals, JSON, and an image whose names can be read."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import linger.c
from linger.c import ArenaUse, memory
from linger.c.arena_image import arena_figure, arena_image
from linger.c.memory_use import table_bytes
from linger.c.steps import PlacedBlock, StepMemory
from linger.errors import GraphError, LingerError, UnsupportedError, UsageError
from linger.graph import save
from tests.support.chip import WIDTHS, WINDOW, model_of, node

SUM = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0}
CURVE = {"data_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_o": 128.0}
BIAS = np.arange(4, dtype=np.int32)
HOSTILE = "[bold red]$x_{$ \x1b[31m\n卷积 */ " + "n" * 300


def conv(result, x, w="w"):
    return f"[{result}] " + node("Conv2dInt", f"{x}, {w}, b", **WIDTHS | WINDOW).replace("y =", f"{result} =", 1)


def residual():
    """Three convolutions, the last one joined with a sum that takes the place of p; then integers go out as reals."""
    body = " ".join(
        [
            "[quant] i = thinker.Quant<data_bits=8, scale_x=16.0>(x)",
            conv("p", "i", "first"),
            conv("q", "p"),
            conv("r", "q"),
            "[sum] " + node("iqAdd", "r, p", **SUM).replace("y =", "s =", 1),
            "[dequant] y = thinker.Dequant<scale_o=16.0>(s)",
        ]
    )
    return model_of(body, inputs="float[batch,3,5,5] x", first=(4, 3, 3, 3), w=(4, 4, 3, 3), b=BIAS)


@pytest.fixture
def use():
    return memory(residual())


def test_the_public_name():
    assert linger.c.memory is memory
    assert linger.c.ArenaUse is ArenaUse


def test_steps_by_hand(use):
    # i has 75 bytes (80 with alignment), p, q and s 100 each (112); p and q are alive while s replaces p
    assert use.rows() == [
        ("0: input quant (Quant)", "i 1×3×5×5", 80, 0, "", 0, 0),
        ("1: p (Conv2dInt)", "p 1×4×5×5", 80 + 112, 0, "", 4 * 3 * 9 + 16, 100 * 27),
        ("2: q (Conv2dInt)", "q 1×4×5×5", 112 + 112, 0, "", 4 * 4 * 9 + 16, 100 * 36),
        ("3: r (Conv2dInt) + iqAdd", "s 1×4×5×5", 112 + 112, 0, "in place", 4 * 4 * 9 + 16, 100 * 36),
        ("4: output dequant (Dequant)", "s 1×4×5×5", 112, 0, "", 0, 0),
    ]
    assert use.steps[3].in_place == ("p",)
    assert use.steps[3].nodes == ("r (Conv2dInt)", "sum (iqAdd)")


def test_totals_by_hand(use):
    assert (use.arena_bytes, use.least_bytes, use.ratio) == (224, 224, 1.0)
    assert (use.peak_step, use.scratch_bytes, use.table_bytes) == (2, 0, 0)
    assert use.weight_bytes == 108 + 144 + 16  # w is read by two steps, the bias by three, and each is stored once
    assert use.macs == 100 * (27 + 36 + 36)
    assert use.summary() == (
        "As C: an arena of 224 bytes, the least that is possible (step 2), no scratch; 268 bytes of weights."
    )


def test_blocks_by_hand(use):
    blocks = {block.name: block for block in use.blocks}
    assert {name: block.kind for name, block in blocks.items()} == {"i": "input", "p": "output", "q": "tensor"}
    assert (blocks["p"].bytes, blocks["p"].first, blocks["p"].last, blocks["p"].tensors) == (100, 1, 4, ("p", "s"))
    assert [block.name for block in use.alive_at(0)] == ["i"]
    assert {block.name for block in use.alive_at(2)} == {"p", "q"}
    low, high = use.alive_at(2)
    assert low.offset + 112 <= high.offset


def test_a_gap_to_the_bound_is_said(use):
    text = replace(use, arena_bytes=240).summary()
    assert "an arena of 240 bytes, 1.071 times the least that is possible, 224 bytes (step 2)" in text


def test_the_text_has_only_columns_that_say_something(use):
    assert str(use).splitlines()[0].split() == ["step", "output", "live", "bytes", "memory", "weights", "KB", "MACs"]
    assert str(use).splitlines()[-1] == use.summary()
    assert repr(use) == "ArenaUse(3 steps, an arena of 224 bytes, 268 bytes of weights)"


def test_views_need_no_step_and_no_memory():
    model = model_of(
        f"{conv('c', 'x')} [flat] f = Flatten(c) " + node("LinearInt", "f, m", **WIDTHS),
        inputs="int8[1,4,2,2] x",
        w=(4, 4, 3, 3),
        b=BIAS,
        m=np.arange(-24, 24).reshape(3, 16).astype(np.int8),
    )
    use = memory(model)
    assert [step.title for step in use.steps] == ["0: input x", "1: c (Conv2dInt)", "2: y (LinearInt)", "3: output y"]
    assert next(block for block in use.blocks if block.name == "c").tensors == ("c", "f")


def test_tables_are_counted_without_those_of_proof_builds():
    use = memory(model_of(node("iqSigmoid", "x", **CURVE), inputs="int8[1,300] x"))
    assert use.table_bytes >= 256
    proof = "#ifdef LINGER_PROOF\nstatic const int8_t t1[9] = {\n};\n#endif\n"
    assert table_bytes(f"static const int16_t t0[5] = {{\n}};\n{proof}static const uint8_t t2[3] = {{\n}};\n") == 13


def test_scratch_is_part_of_the_arena(shared_lstm):
    use = memory(shared_lstm)
    (step,) = [step for step in use.steps if step.scratch_bytes]
    kinds = [block.kind for block in use.alive_at(step.number)]
    assert kinds.count("scratch") >= 1
    assert step.scratch_bytes == use.scratch_bytes < step.live_bytes <= use.arena_bytes
    assert " of it scratch; " in use.summary()
    assert "scratch" in str(use).splitlines()[0]


@pytest.fixture
def shared_lstm(request):
    return request.config.rootpath / "tests" / "golden" / "lstm_h24.onnx"


def test_json_has_everything(use, tmp_path):
    read = json.loads(use.to_json(tmp_path / "use.json"))
    assert read == json.loads((tmp_path / "use.json").read_text("utf-8"))
    assert (read["format"], read["version"], read["path"]) == ("linger-c-memory", 1, None)
    assert (read["arena_bytes"], read["least_bytes"], read["peak_step"]) == (224, 224, 2)
    assert [row["function"] for row in read["rows"]] == ["", "step_0", "step_1", "step_2", ""]
    assert {block["name"]: block["last"] for block in read["blocks"]} == {"i": 1, "p": 4, "q": 3}


def test_the_model_is_not_changed():
    model = residual()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    memory(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_file_is_named(tmp_path):
    save(residual(), tmp_path / "net.onnx")
    assert memory(tmp_path / "net.onnx").path == tmp_path / "net.onnx"
    with pytest.raises(UsageError, match="there is no such file"):
        memory(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("body", "inputs", "message"),
    [
        (
            "q = thinker.Quant<data_bits=8, scale_x=16.0>(x) r = thinker.Dequant<scale_o=16.0>(q) y = Sin(r)",
            "float[1,3] x",
            "y (Sin)",
        ),
        ("y = Relu(x)", "int8[1,n] x", "the input x"),
        ("y = Relu(x)", "int8[1,100000,100000] x", "the tensors take 20,000,000,000 bytes"),
    ],
    ids=["float", "open", "enormous"],
)
def test_what_has_no_c_is_said_in_one_sentence(body, inputs, message):
    with pytest.raises(UnsupportedError) as error:
        memory(model_of(body, inputs=inputs))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_node_that_contradicts_its_op_is_an_error_of_the_file():
    """A dialect node whose result nobody named: shape inference takes it, and no step can be made of it."""
    text = '<ir_version: 8, opset_import: ["": 12, "thinker": 1]> g (int8[1,4] x) => (int8[1,4] y) { y = Relu(x) }'
    model = onnx.parser.parse_model(text)
    model.graph.node.append(onnx.helper.make_node("iqAdd", ["x"], ["z"], domain="thinker"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.INT8, [1, 4]))
    with pytest.raises(LingerError) as error:
        memory(model)
    assert "\n" not in str(error.value)


def test_a_mistake_of_the_planner_is_no_traceback(monkeypatch):
    def fails(plan, name):
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("linger.c.memory_use.write_source", fails)
    with pytest.raises(GraphError, match=r"a node does not fit its op \(IndexError: tuple index out of range\)"):
        memory(residual())


# the image


def long_use(count=60):
    """A made-up network: a pyramid of tensors that become smaller, one that lives long, scratch in every seventh step."""
    steps, blocks = [StepMemory(0, "", ("x (Quant)",), ("Quant",), ("x",), ((1, 3, 32, 32),), 4096)], []
    blocks.append(PlacedBlock("x", "input", 0, 4096, 0, 1, ("x",)))
    for i in range(1, count):
        size = max(16, 65536 >> (i // 6))
        name = f"stages.{i // 6}.{i % 6}.conv{i}.Conv2dInt"
        blocks.append(PlacedBlock(name, "tensor", 4096 + (i % 2) * 65536, size, i, i + 1, (name,)))
        if i % 7 == 0:
            blocks.append(PlacedBlock(f"{i}/scratch0", "scratch", 140_000, 512, i, i, ()))
        nodes = (f"{name} (Conv2dInt)", f"relu{i} (Relu)")
        steps.append(StepMemory(i, f"step_{i - 1}", nodes, ("Conv2dInt", "Relu"), (name,), ((1, 64, 8, 8),), size))
    steps.append(StepMemory(count, "", ("y (Dequant)",), ("Dequant",), ("y",), ((1, 10),), 16))
    blocks.append(PlacedBlock("skip", "output", 142_000, 7000, 3, count, ("skip",)))
    return ArenaUse(tuple(steps), tuple(blocks), 150_000, 140_000, 1000, 0)


def spans(figure, use):
    """The boxes of the names, and of the blocks, in pixels."""
    axes = figure.axes[0]
    figure.draw_without_rendering()
    names = [text for text in axes.texts if text.get_text() and not text.get_text().startswith(("arena", "least"))]
    unit = 1024 if use.arena_bytes >= 4096 else 1
    corners = {
        b.name: [(b.first - 0.5, b.offset / unit), (b.last + 0.5, (b.offset + b.bytes) / unit)] for b in use.blocks
    }
    boxes = {name: axes.transData.transform(points) for name, points in corners.items()}
    return [text.get_window_extent() for text in names], boxes


def share_area(a, b):
    return min(a[1][0], b[1][0]) - max(a[0][0], b[0][0]) > 0.5 and min(a[1][1], b[1][1]) - max(a[0][1], b[0][1]) > 0.5


@pytest.mark.parametrize("count", [5, 60])
def test_names_in_the_image_do_not_cover_each_other(count):
    use = long_use(count)
    names, blocks = spans(arena_figure(use), use)
    assert len(names) >= 0.6 * len(blocks)
    boxes = [box.get_points() for box in names]
    assert [pair for pair in combinations(boxes, 2) if share_area(*pair)] == []
    crossed = [box for box in boxes if sum(share_area(box, block) for block in blocks.values()) > 1]
    assert crossed == []


def test_the_image_shows_the_arena_and_its_bound():
    written = arena_image(long_use(9), "svg").decode()
    assert "<!-- arena 146.5 KB -->" in written
    assert "<!-- least possible 136.7 KB -->" in written
    assert "<!-- skip -->" in written
    assert all(f"<!-- {kind} -->" in written for kind in ("input", "tensor", "scratch", "output"))
    assert "stages.0.1.conv1.Conv2dInt +1  1 -->" in written


def test_the_legend_has_small_fields_and_lies_inside_the_narrowest_image():
    figure = arena_figure(long_use(9))
    figure.draw_without_rendering()
    legend, area = figure.axes[0].get_legend(), figure.axes[0].get_window_extent()
    assert area.x0 < legend.get_window_extent().x0 < legend.get_window_extent().x1 < area.x1
    fields = [patch.get_window_extent() for patch in legend.get_patches()]
    # 0.7 letters high, 1.4 wide; pixels up to 1000 are right to 1e-13 of themselves in float64, a field of 10 to 1e-11
    assert [field.width / field.height for field in fields] == pytest.approx([2.0] * 5, rel=1e-9)


def test_one_line_where_the_plan_is_the_best(use):
    written = arena_image(use, "svg").decode()
    assert "<!-- arena 224 B = the least possible -->" in written
    assert "<!-- least possible" not in written
    assert "<!-- p +1 -->" in written  # the sum lies there too


def test_pictures_are_the_same_every_time(use, tmp_path):
    for name in ("a.png", "b.png"):
        use.plot(tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_image_has_one_of_two_endings(use, tmp_path):
    with pytest.raises(UsageError, match=r"images are written as \.png, \.svg"):
        use.plot(tmp_path / "p.jpg")
    assert list(tmp_path.iterdir()) == []


def test_names_of_a_file_cannot_break_the_image():
    model = residual()
    for made in model.graph:
        made.name = HOSTILE
    for value in [made.outputs[0] for made in model.graph][:-1]:
        value.name = HOSTILE + (value.name or "")
    use = memory(model)
    assert arena_image(use, "png").startswith(b"\x89PNG")
    assert "\x1b" not in str(use)
