"""Networks are exported with every option, and what comes out is compiled, run and compared with the numpy reference."""

import hashlib
import json
import subprocess

import numpy as np
import onnx_ir as ir
import pytest

import linger
from linger import verify
from linger.c import build, export, prove
from linger.c.exporter import is_exported
from linger.errors import UnsupportedError, UsageError
from linger.graph import save
from tests.support.c_compiler import STRICT, require_compiler
from tests.support.c_folders import QUICK, WIDTHS, WINDOW, image_network, run_test_program, sequence_network, symbols
from tests.support.c_targets import require_target
from tests.support.streams import conv, dialect, network, recurrent

OPTIONS = {
    "plain": {},
    "caller's arena, channels innermost, weights in a file": {"arena": "caller", "layout": "nhwc", "weights": "file"},
    "arduino": {"framework": "arduino", "arena": "caller"},
    "zephyr": {"framework": "zephyr", "weights": "file"},
    "esp-idf": {"framework": "esp-idf", "layout": "nhwc"},
}


@pytest.fixture(scope="module")
def model():
    return image_network()


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "picture-net v2.onnx"
    save(model, path)
    return path


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_option_gives_the_integers_of_the_file(options, file, tmp_path):
    require_compiler()
    folder = export(file, tmp_path / "c", **options)
    with build(folder, flags=QUICK) as program:
        proof = prove(program, file, samples=2)
    assert proof.ok, proof.summary()
    assert proof.differing == 0
    assert {row.name for row in proof.rows} >= {"scores", "picture", "scores (integers)"}


def test_a_network_on_an_emulated_processor(file, tmp_path):
    require_target("cortex-m4")
    folder = export(file, tmp_path / "c", arena="caller", layout="nhwc", weights="file")
    with build(folder, target="cortex-m4") as program:
        assert prove(program, file, samples=1).ok


@pytest.mark.parametrize(
    "options", [{}, {"arena": "caller", "layout": "nhwc", "weights": "file"}], ids=["plain", "all"]
)
def test_a_stream_is_the_whole_sequence(options, tmp_path):
    require_compiler()
    model = sequence_network()
    folder = export(model, tmp_path / "c", stream=2, **options)
    with build(folder, flags=QUICK) as program:
        proof = prove(program, model, samples=2)
    assert proof.ok, proof.summary()
    whole = next(row for row in proof.rows if row.name == "y (whole sequence)")
    assert (whole.elements, proof.samples) == (2 * 8 * 5, 2 * 4)
    assert run_test_program(folder, tmp_path).returncode == 0


def test_the_header_of_a_stream_says_how_it_is_called(tmp_path):
    text = (export(sequence_network(), tmp_path / "c", name="voice", stream=1) / "voice.h").read_text()
    assert "void voice_reset(voice_state *state);" in text
    assert "void voice_step(voice_state *state, const float *x, float *y);" in text
    assert "void voice_step_q(voice_state *state, const int8_t *x, int8_t *y);" in text
    assert "#define VOICE_X_FRAMES 1" in text
    assert "#define VOICE_Y_DELAY 0" in text


def test_a_stream_on_an_emulated_processor(tmp_path):
    require_target("cortex-m4")
    model = sequence_network()
    with build(export(model, tmp_path / "c", stream=1), target="cortex-m4") as program:
        assert prove(program, model).ok


PASSING = {
    "identity": (lambda g, x: g.op("Identity", x), "int8[1,4,3] x", "int8[1,4,3] y"),
    "transpose": (lambda g, x: g.op("Transpose", x, perm=[0, 2, 1]), "int8[1,4,3] x", "int8[1,3,4] y"),
    "quant": (lambda g, x: dialect(g, "Quant", x, data_bits=8, scale_x=0.3), "float[1,4,3] x", "int8[1,4,3] y"),
}


@pytest.mark.parametrize(("make", "inputs", "outputs"), PASSING.values(), ids=PASSING)
def test_networks_that_hardly_compute(make, inputs, outputs, tmp_path):
    """No step, no weights, a scale that is no power of two."""
    folder = export(network(make, inputs=inputs, outputs=outputs), tmp_path / "c", weights="file", arena="caller")
    assert run_test_program(folder, tmp_path, "-DLINGER_PROOF").returncode == 0


def test_a_picture_of_real_numbers_has_the_order_of_the_file(tmp_path):
    """Its channels are innermost in memory, and outermost for who calls."""
    require_compiler()
    draw = np.random.default_rng(0)

    def build(g, x):
        w, b = draw.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8), np.zeros(4, np.int32)
        y = dialect(g, "Conv2dInt", x, w, b, **WINDOW, **WIDTHS, scale_x=16.0, scale_w=64.0, scale_o=8.0)
        return dialect(g, "Dequant", y, scale_o=8.0)

    model = network(build, inputs="int8[1,3,5,6] x", outputs="float[1,4,5,6] y")
    for layout in ("file", "nhwc"):
        folder = export(model, tmp_path / layout, layout=layout)
        assert run_test_program(folder, tmp_path).returncode == 0


def test_channels_are_innermost_where_that_is_asked_for(model, tmp_path):
    entries = json.loads((export(model, tmp_path / "c", layout="nhwc") / "manifest.json").read_bytes())
    assert [edge["order"] for edge in entries["inputs"]] == [[0, 2, 3, 1], [0, 2, 3, 1]]
    assert [edge["order"] for edge in entries["outputs"]] == [[0, 1], [0, 2, 3, 1]]
    assert "1 x 5 x 6 x 3, channels innermost (1 x 3 x 5 x 6 in the file)" in (tmp_path / "c/network.h").read_text()


def test_the_name_is_made_of_the_file_or_given(file, tmp_path):
    assert (export(file, tmp_path / "a") / "picture_net_v2.h").exists()
    assert (export(file, tmp_path / "b", name="other") / "other.h").exists()


def test_the_manifest_ties_the_folder_to_file_and_certificate(file, tmp_path):
    verify(None, file, batches=1, certificate=tmp_path / "certificate.json")
    folder = export(file, tmp_path / "c", certificate=tmp_path / "certificate.json")
    entries = json.loads((folder / "manifest.json").read_bytes())
    assert entries["model"]["name"] == file.name
    assert entries["model"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert entries["certificate"]["verdict"] == "equal"
    digest = hashlib.sha256((tmp_path / "certificate.json").read_bytes()).hexdigest()
    assert entries["certificate"]["sha256"] == digest
    other = tmp_path / "other.onnx"
    save(image_network(6), other)
    with pytest.raises(UsageError, match=r"certificate\.json' is about another file than other\.onnx"):
        export(other, tmp_path / "d", certificate=tmp_path / "certificate.json")
    assert not (tmp_path / "d").exists()


def test_equal_input_gives_equal_folders(file, tmp_path):
    first, second = (export(file, tmp_path / name) for name in "ab")
    assert {f.name: f.read_bytes() for f in first.iterdir()} == {f.name: f.read_bytes() for f in second.iterdir()}


def test_two_networks_in_one_program(tmp_path):
    """Their symbols do not clash, and both compute what they compute alone."""
    cc = require_compiler()
    folder = tmp_path / "both"
    folder.mkdir()
    models = {"one": image_network(7), "two": image_network(8)}
    wants = []
    for name, model in models.items():
        export(model, folder / name, name=name)
        with build(folder / name, flags=QUICK) as program:
            wants.append(program.run_q(zeros(program))["scores"].reshape(-1).tolist())
    assert wants[0] != wants[1]
    (folder / "main.c").write_text(
        """
#include <stdio.h>
#include "one.h"
#include "two.h"
static int8_t image[90], mask[120], scores[5], picture[120];
int main(void) {
    one_run_q(image, mask, scores, picture);
    for (int i = 0; i < 5; i++) { printf("%d ", scores[i]); }
    two_run_q(image, mask, scores, picture);
    for (int i = 0; i < 5; i++) { printf("%d ", scores[i]); }
    return 0;
}
"""
    )
    sources = [f for f in folder.rglob("*.c") if f.name != "test.c"]
    command = [cc, *STRICT, f"-I{folder}/one", f"-I{folder}/two", *map(str, sources), "-o", str(tmp_path / "both.out")]
    subprocess.run(command, check=True)
    done = subprocess.run([str(tmp_path / "both.out")], capture_output=True, text=True, check=True)
    assert [int(n) for n in done.stdout.split()] == [*wants[0], *wants[1]]


def zeros(program):
    layouts = {edge.name: edge.layout(quantized=True) for edge in program.folder.inputs}
    return {name: np.zeros(layout.shape, layout.dtype) for name, layout in layouts.items()}


def test_every_symbol_begins_with_the_name_and_no_library_is_needed(file, tmp_path):
    require_compiler()
    folder = export(file, tmp_path / "c", name="net")
    sources = ["net.c", "net_float.c", "net_weights.c"]
    defined, needed = symbols(folder, tmp_path, sources)
    assert {"net_run", "net_run_q"} <= defined
    assert [name for name in defined if not name.startswith("net_")] == []
    assert needed <= {"memcpy", "memset", "memmove", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"}


def test_a_caller_of_integers_links_no_floats(file, tmp_path):
    """On a Cortex-M0 each operation on floats is a call of a helper, and so is each division and product of 64 bits."""
    require_target("cortex-m0")
    folder = export(file, tmp_path / "c", name="net")
    options = ("-mcpu=cortex-m0", "-mthumb")
    tools = {"cc": "arm-none-eabi-gcc", "nm": "arm-none-eabi-nm"}
    _, needed = symbols(folder, tmp_path, ["net.c", "net_weights.c"], *options, **tools)
    assert needed <= {"memcpy", "memset"}
    _, needed = symbols(folder, tmp_path, ["net_float.c"], *options, **tools)
    assert "__aeabi_fmul" in needed  # so the check above can fail


HOSTILE = (
    '*/ #error "x"\n',
    "int",
    '"; system("true"); //',
    "??/\n#error",
    "while",
    "卷积 <script>alert(1)</script>",
    "a" * 5000,
    "step_0",
    "evil_core",
    "int8_t",
    "`$(id)` ${x}",
    "| a | b |",
    "%s%n\\\n#error",
)


def test_hostile_names_stay_in_comments_and_strings(tmp_path):
    """Names of tensors, nodes, inputs and outputs may be anything; C, CMake and the page get few letters of them."""
    model = image_network()
    model.graph.name = "evil */ #error\n"
    for number, node in enumerate(model.graph):
        node.name = f"{HOSTILE[number % len(HOSTILE)]}{number}"
        for output in node.outputs:
            output.name = f"{HOSTILE[(number + 3) % len(HOSTILE)]}{number}"
    for value, name in zip([*model.graph.inputs, *model.graph.outputs], ("*/ int", "int8_t", "while", ""), strict=True):
        value.name = name or HOSTILE[5]
    folder = export(model, tmp_path / "c", name="evil")
    for file in folder.iterdir():
        if file.name != "manifest.json":
            text = file.read_text("ascii")
            assert not [word for word in ("#error", "<script", 'system("', "${x}", "$(id)", "??") if word in text], file
    done = run_test_program(folder, tmp_path, "-DLINGER_PROOF", "-trigraphs")
    assert (done.returncode, done.stderr) == (0, "")
    with build(folder, flags=QUICK) as program:
        assert prove(program, model, samples=1).ok


def test_an_empty_name_of_a_parameter(tmp_path):
    model = image_network(scores="卷积")
    assert "void net_run(const float *image, const int8_t *mask, float *x, int8_t *picture);" in (
        export(model, tmp_path / "c", name="net") / "net.h"
    ).read_text("ascii")


WRONG = {
    "name": ({"name": "9lives"}, r"name='9lives' is no name in C"),
    "keyword": ({"name": "while"}, r"name='while' has a meaning of its own"),
    "C++ keyword": ({"name": "class"}, r"name='class' has a meaning of its own"),
    "file of the folder": ({"name": "test"}, r"name='test' has a meaning of its own"),
    "newline": ({"name": "a\nb"}, r"name='a\\\\nb' is no name in C"),
    "long": ({"name": "a" * 500}, r"is no name in C"),
    "arena": ({"arena": "heap"}, r"export: arena='heap' is none of 'static', 'caller'\."),
    "all": (
        {"layout": "nchw", "weights": 3},
        r"layout='nchw' is none of 'file', 'nhwc'; weights=3 is none of 'c', 'file'\.",
    ),
    "framework": ({"framework": "mbed"}, r"framework='mbed' is none of None, 'zephyr', 'esp-idf', 'arduino'\."),
    "stream": ({"stream": -1}, r"stream=-1 is no number of frames"),
    "time": ({"time": {"image": 3}}, r"time and pairs belong to a stream"),
    "no time": ({"stream": 1}, r"no recurrent layer and no Conv1d says which axis"),
    "certificate": ({"certificate": "nothing.json"}, r"nothing\.json: there is no such file"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_one_sentence_and_nothing_is_written(options, message, file, tmp_path):
    with pytest.raises(UsageError, match=message):
        export(file, tmp_path / "c", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_alone(file, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c/mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="its content is not ours to replace"):
            export(file, tmp_path / "c", overwrite=overwrite)
    assert [f.name for f in (tmp_path / "c").iterdir()] == ["mine.txt"]


def test_an_exported_folder_is_replaced_if_asked(file, tmp_path):
    folder = export(file, tmp_path / "c", name="first")
    with pytest.raises(
        UsageError, match=r"linger exported this folder before\. Replace it with overwrite=True .*--overwrite"
    ):
        export(file, folder, name="second")
    assert is_exported(folder)
    export(file, folder, name="second", overwrite=True)
    assert not list(folder.glob("first*"))
    (folder / "mine.txt").write_text("mine")
    assert not is_exported(folder)
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"it holds other files too: mine\.txt\. Move or remove them"):
            export(file, folder, overwrite=overwrite)


def test_what_has_no_c_is_named_all_at_once(tmp_path):
    def build_floats(g, x):
        q = dialect(g, "Quant", x, data_bits=8, scale_x=16.0)
        y = dialect(g, "Dequant", q, scale_o=16.0)
        return g.op("Softmax", g.op("Tanh", y), axis=1)

    model = network(build_floats, inputs="float[1,4] x", outputs="float[1,4] y")
    with pytest.raises(UnsupportedError, match=r"cannot be written as C: .*Tanh.*Softmax.*linger\.coverage"):
        export(model, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_open_sizes_are_refused(tmp_path):
    model = network(lambda g, x: g.op("Identity", x), inputs="int8[1,4,n] x", outputs="int8[1,4,n] y")
    with pytest.raises(UnsupportedError, match=r"the input x has open sizes \[1, 4, n\]; export with fixed sizes"):
        export(model, tmp_path / "c")


def test_graphs_inside_nodes_are_refused(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g (int8[1,4] x, bool b) => (int8[1,4] y) {
        y = If (b) <then_branch = a () => (int8[1,4] p) { p = Identity(x) }, else_branch = c () => (int8[1,4] q) { q = Neg(x) }>
    }"""
    with pytest.raises(UnsupportedError, match=r"\(If\) runs graphs inside it; .* before the export"):
        export(ir.from_onnx_text(text), tmp_path / "c")


def test_a_node_that_a_stream_cannot_have_is_named(tmp_path):
    def build_flat(g, x):
        return g.op("Flatten", conv(g, x, np.random.default_rng(0), (4, 6), pads=(2, 0)), axis=1)

    model = network(build_flat, inputs="int8[1,4,8] x", outputs="int8[1,48] y")
    with pytest.raises(UnsupportedError, match="Flatten"):
        export(model, tmp_path / "c", stream=1)
    assert not (tmp_path / "c").exists()


def build_last(g, x):
    """The last frame of a recurrent layer."""
    y = recurrent(g, x, np.random.default_rng(0), (3, 5))[0]
    return g.op("Gather", y, np.array(-1, np.int64), axis=0)


STREAMS = {
    "longer than the sequence": (
        sequence_network,
        9,
        r"stream=9: the sequence x of the file has 8 frames, fewer than one step\. Give at most 8",
    ),
    "frames left over": (
        lambda: network(build_last, inputs="int8[6,1,3] x", outputs="int8[1,5] y"),
        4,
        r"stream=4: the sequence x of the file has 6 frames, and steps of 4 do not end with it, as y needs",
    ),
    "a stride": (
        lambda: network(
            lambda g, x: conv(g, x, np.random.default_rng(0), (4, 4), stride=2, pads=(2, 0)), outputs="int8[1,4,12] y"
        ),
        1,
        r"^stream=1: .* moves by 2 frames and gets 1 in one step\. Choose a multiple of 2",
    ),
    "no states": (
        image_network,
        0,
        r"stream=0 is for a file that is one step .*pairs=\{'hn': 'h0'\}.* or leave stream out",
    ),
}


@pytest.mark.parametrize(("make", "frames", "message"), STREAMS.values(), ids=STREAMS)
def test_steps_that_do_not_fit_are_refused(make, frames, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        export(make(), tmp_path / "c", stream=frames)
    assert not (tmp_path / "c").exists()


def test_frames_may_be_left_over_where_every_frame_has_its_output(tmp_path):
    require_compiler()
    model = sequence_network()
    with build(export(model, tmp_path / "c", stream=3), flags=QUICK) as program:
        proof = prove(program, model)
    assert proof.ok
    assert proof.samples == 2


def test_arena_and_weights_need_no_more_than_multiples_of_8(model, tmp_path):
    """The header promises it; the sanitizer sees every access that needs more."""
    require_compiler()
    folder = export(model, tmp_path / "c", name="net", arena="caller", weights="file")
    header = (folder / "net.h").read_text()
    assert header.count("multiple of 8") == 2
    assert "multiple of 16" not in header
    text = (folder / "test.c").read_text()
    for name in ("ARENA", "WEIGHTS"):
        old = f"static union {{ uint8_t bytes[NET_{name}_BYTES]; int64_t aligned; }} {name.lower()};"
        assert old in text
        place = f"struct {{ int64_t before; uint8_t bytes[NET_{name}_BYTES]; }}"
        text = text.replace(old, f"static {place} __attribute__((aligned(16))) {name.lower()};")
    (folder / "test.c").write_text(text)
    for flags in (("-fsanitize=undefined", "-fno-sanitize-recover"), ("-O2", "-march=native")):
        assert run_test_program(folder, tmp_path, *flags).returncode == 0


def test_a_network_that_is_called_like_a_header(model, tmp_path):
    """<limits.h> is not the header of the network."""
    path = tmp_path / "limits.onnx"
    save(model, path)
    folder = export(path, tmp_path / "c")
    assert (folder / "limits_net.h").exists()
    assert run_test_program(folder, tmp_path).returncode == 0
    with pytest.raises(UsageError, match=r"name='limits' has a meaning of its own .* the header limits\.h"):
        export(path, tmp_path / "d", name="limits")


@pytest.mark.parametrize(("bits", "of_nan"), [(8, 0), (32, -(2**31))])
def test_the_header_says_what_becomes_of_nan(bits, of_nan, tmp_path):
    require_compiler()

    def build_quant(g, x):
        return dialect(g, "Quant", x, data_bits=bits, scale_x=4.0)

    folder = export(
        network(build_quant, inputs="float[1,1] x", outputs=f"int{bits}[1,1] y"), tmp_path / "c", name="net"
    )
    assert f"NaN gives {of_nan}." in (folder / "net.h").read_text()
    with build(folder, flags=QUICK) as program:
        assert program.run(None, {"x": np.full((1, 1), np.nan, np.float32)})[0].item() == of_nan


def test_the_front_door(tmp_path):
    assert linger.c.__dir__()[:3] == ["export", "build", "prove"]
    assert linger.c.export is export
