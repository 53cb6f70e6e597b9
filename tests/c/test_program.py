"""Folders of exported C are compiled and run: values, every tensor, streams, and all that can go wrong with them."""

import gc
import json

import numpy as np
import pytest

from linger.c import build
from linger.c.exported_folder import read_folder
from linger.c.runner_source import Variant, main_source
from linger.errors import LingerError, UnsupportedError, UsageError
from tests.support.c_compiler import require_compiler
from tests.support.tiny_c_network import tiny_files, tiny_manifest, write, write_echo, write_tiny

FEEDS = {"in/image*/": np.array([[[[0.5, 1.0], [-1.0, 2.0]]]], np.float32), "offset": np.array([5], np.int32)}
INTEGERS = {**FEEDS, "in/image*/": np.array([[[[8, 16], [-16, 32]]]], np.int8)}
# x·w + 5 for x = 8, 16, −16, 32 and w = 1, −2, 3; channel by channel
Y = np.array([[[[13, 21], [-11, 37]], [[-11, -27], [37, -59]], [[29, 53], [-43, 101]]]], np.int8)
SCORES = np.array([[60, -60, 127]], np.int8)  # 140 saturates
SOON = 0.5  # seconds


@pytest.fixture(scope="module", params=["static", "caller"])
def tiny(request, tmp_path_factory):
    require_compiler()
    folder = write_tiny(tmp_path_factory.mktemp("c") / 'a "folder" with spaces', request.param)
    with build(folder) as program:
        yield program


def frames(*numbers):
    return [{"frame": np.array([[n, 1]], np.int8)} for n in numbers]


def test_float_interface(tiny):
    scores, raw = tiny.run(None, FEEDS)
    assert scores.dtype == np.float32
    assert scores.tolist() == (SCORES / 16).tolist()
    assert raw.tolist() == [13, -11, 29]
    assert [a.tolist() for a in tiny.run(["raw"], FEEDS)] == [[13, -11, 29]]


def test_integer_interface(tiny):
    outputs = tiny.run_q(INTEGERS)
    assert outputs["scores\n"].dtype == np.int8
    assert outputs["scores\n"].tolist() == SCORES.tolist()
    assert outputs["raw"].tolist() == [13, -11, 29]


def test_every_tensor_in_the_order_of_the_onnx_file(tiny):
    tensors = tiny.intermediates(FEEDS)
    assert tensors["y"].tolist() == Y.tolist()  # memory has the channels innermost
    assert tensors["s"].tolist() == SCORES.tolist()  # memory has another permutation
    assert tensors["scores\n"].tolist() == (SCORES / 16).tolist()
    assert tiny.intermediates(INTEGERS, quantized=True)["y"].tolist() == Y.tolist()


def test_outputs_follow_the_tensors_that_they_are_computed_from(tiny):
    assert list(tiny.intermediates(INTEGERS, quantized=True)) == ["y", "s"]
    assert list(tiny.intermediates(FEEDS)) == ["y", "s", "scores\n", "raw"]


def test_many_samples_in_one_process(tiny):
    samples = [{**INTEGERS, "offset": np.array([n], np.int32)} for n in range(5)]
    assert [r["raw"].tolist() for r in tiny.run_many(samples, quantized=True)] == [
        [8 + n, -16 + n, 24 + n] for n in range(5)
    ]
    tensors = tiny.intermediates_many(samples, quantized=True)
    assert [t["y"][0, 0, 0, 0] for t in tensors] == [8, 9, 10, 11, 12]
    assert tiny.run_many([]) == []


def test_inputs_and_outputs_are_described_as_by_onnx_runtime(tiny):
    assert [(i.name, i.shape, i.type) for i in tiny.get_inputs()] == [
        ("in/image*/", [1, 1, 2, 2], "tensor(float)"),
        ("offset", [1], "tensor(int32)"),
    ]
    assert [o.name for o in tiny.get_outputs()] == ["scores\n", "raw"]


def test_size_counts_the_network_alone(tiny):
    size = tiny.size()
    assert size.constants >= 3  # the weights, and perhaps constants of the compiler
    assert 0 < size.code < 2000
    assert size.bss in (0, 16)  # the arena, unless the caller has it
    assert (size.flash, size.ram) == (size.text + size.data, size.data + size.bss)


def test_host_counts_no_instructions(tiny):
    with pytest.raises(UnsupportedError, match="cortex-m4"):
        tiny.instructions(FEEDS)


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({"offset": FEEDS["offset"]}, "lacks in/image"),
        ({**FEEDS, "other": FEEDS["offset"]}, "unknown input other"),
        ({**FEEDS, "offset": np.array([5], np.int64)}, r"offset as int64\[1\], not int32\[1\]"),
        ({**FEEDS, "offset": np.array([[5]], np.int32)}, r"int32\[1, 1\], not int32\[1\]"),
        (INTEGERS, r"int8\[1, 1, 2, 2\], not float32"),
    ],
    ids=["missing", "unknown", "type", "shape", "integers"],
)
def test_wrong_feeds_are_named(tiny, feeds, words):
    with pytest.raises(UsageError, match=words):
        tiny.run(None, feeds)


def test_wrong_calls_are_named(tiny):
    with pytest.raises(UsageError, match="no output y"):
        tiny.run(["y"], FEEDS)
    with pytest.raises(UsageError, match="list of feeds"):
        tiny.run_many(FEEDS)


@pytest.mark.parametrize("arena", ["static", "caller"])
def test_stream_begins_anew_with_each_call(tmp_path, arena):
    require_compiler()
    with build(write_echo(tmp_path / "echo", arena)) as echo:
        for _ in range(2):
            outputs = echo.run_many(frames(3, 4, 10), quantized=True)
            assert [r["out"].tolist() for r in outputs] == [[[3, 1]], [[7, 2]], [[14, 2]]]
        assert [t["sum"].tolist() for t in echo.intermediates_many(frames(3, 4), quantized=True)] == [
            [[3, 1]],
            [[7, 2]],
        ]
        assert echo.run(None, {"frame": np.array([[0.5, -1.0]], np.float32)})[0].tolist() == [[0.5, -1.0]]


def changed(tmp_path, old, new):
    require_compiler()

    def change(text):
        assert old in text
        return text.replace(old, new)

    return write_tiny(tmp_path / "changed", change=change)


FIRST_LINE = "    int8_t *y = (int8_t *)arena;\n"


def test_crash_is_an_error(tmp_path):
    folder = changed(tmp_path, FIRST_LINE, FIRST_LINE + "    *(volatile int *)0 = 1;\n")
    with build(folder) as program, pytest.raises(LingerError, match=r"crashed \(signal SIG"):
        program.run_q(INTEGERS)


def test_exit_code_is_an_error(tmp_path):
    folder = changed(tmp_path, FIRST_LINE, FIRST_LINE + "    extern void exit(int); exit(3);\n")
    with build(folder) as program, pytest.raises(LingerError, match="exit code 3"):
        program.run_q(INTEGERS)


def test_early_end_is_an_error(tmp_path):
    folder = changed(tmp_path, FIRST_LINE, FIRST_LINE + "    extern void exit(int); exit(0);\n")
    with build(folder) as program, pytest.raises(LingerError, match="before all of its outputs"):
        program.run_q(INTEGERS)


def test_endless_loop_is_an_error(tmp_path):
    folder = changed(tmp_path, FIRST_LINE, FIRST_LINE + "    for (volatile int i = 0; i < 1; i += 0) {}\n")
    with build(folder, timeout=SOON) as program, pytest.raises(LingerError, match=r"within 0\.5 seconds"):
        program.run_q(INTEGERS)


def test_sanitizer_reports_are_errors(tmp_path):
    folder = changed(tmp_path, "scores[c] = clamp(y[c] +", "scores[c] = clamp(y[c + 16] +")
    flags = ["-O1", "-fsanitize=address"]
    with build(folder, flags=flags) as program, pytest.raises(LingerError, match="global-buffer-overflow"):
        program.run_q(INTEGERS)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("linger_proof(7, y, 12);", "", "never shows the tensors y"),
        ("linger_proof(7, y, 12);", "linger_proof(7, y, 11);", "y with 11 bytes, not 12"),
        ("linger_proof(7, y, 12);", "linger_proof(8, y, 12);", "tensor 8, which the manifest lacks"),
        ("linger_proof(7, y, 12);", "linger_proof(-9, y, 12);", "tensor -9, which the manifest lacks"),
        ("linger_proof(7, y, 12);", "linger_proof(7, y, 12); linger_proof(7, y, 12);", "y twice"),
    ],
    ids=["never", "size", "unknown", "negative", "twice"],
)
def test_proof_that_contradicts_the_manifest_is_an_error(tmp_path, old, new, words):
    with build(changed(tmp_path, old, new)) as program:
        assert program.run_q(INTEGERS)["raw"].tolist() == [13, -11, 29]
        with pytest.raises(LingerError, match=words):
            program.intermediates(FEEDS)


def test_output_that_is_not_written_is_not_zero(tmp_path):
    with build(changed(tmp_path, "        raw[c] = y[c];\n", "")) as program:
        assert program.run_q(INTEGERS)["raw"].tolist() == [np.int8(0xA5 - 256)] * 3


def test_file_of_weights_is_compiled_once(tmp_path):
    require_compiler()
    with build(write_tiny(tmp_path / "tiny")) as program:
        program.compile(proof=True)
        names = sorted(file.name for file in program._place.glob("source_*.o"))
        assert names == ["source_0.o", "source_0_proof.o", "source_1.o"]


def test_compiler_words_are_in_the_error(tmp_path):
    with pytest.raises(LingerError, match=r"cannot compile tiny\.c: .*oops"):
        build(changed(tmp_path, "static int8_t clamp", "oops static int8_t clamp"))


def test_linker_words_are_in_the_error(tmp_path):
    with pytest.raises(LingerError, match=r"cannot link .*other_weights"):
        build(changed(tmp_path, "tiny_weights", "other_weights"))


def test_temporary_files_go_with_the_program(tmp_path):
    require_compiler()
    program = build(write_tiny(tmp_path / "tiny"))
    place = program._place
    assert place.is_dir()
    del program
    gc.collect()
    assert not place.exists()
    program = build(tmp_path / "tiny")
    program.close()
    assert not program._place.exists()
    with pytest.raises(UsageError, match="closed"):
        program.run(None, FEEDS)


def test_headers_in_a_subfolder_are_found(tmp_path):
    require_compiler()
    files = tiny_files()
    (tmp_path / "include").mkdir()
    (tmp_path / "src").mkdir()
    moved = {"include/tiny.h": files["tiny.h"], "src/tiny.c": files["tiny.c"], "src/w.c": files["tiny_weights.c"]}
    with build(write(tmp_path, {**tiny_manifest(), "sources": ["src/tiny.c", "src/w.c"]}, moved)) as program:
        assert program.intermediates(FEEDS)["y"].tolist() == Y.tolist()


def test_changed_files_are_all_named(tmp_path):
    folder = write_tiny(tmp_path / "tiny")
    (folder / "tiny_weights.c").write_text("#include <stdint.h>\nconst int8_t tiny_weights[3] = {1, 1, 1};\n")
    (folder / "tiny.h").unlink()
    with pytest.raises(UsageError, match=r"tiny\.h cannot be read .*tiny_weights\.c is not the file"):
        build(folder)


def test_edited_files_are_taken_on_request(tmp_path):
    require_compiler()
    folder = write_tiny(tmp_path / "tiny")
    (folder / "tiny_weights.c").write_text("#include <stdint.h>\nconst int8_t tiny_weights[3] = {1, 1, 1};\n")
    with build(folder, check_files=False) as program:
        assert program.run_q(INTEGERS)["raw"].tolist() == [13, 13, 13]


def test_missing_folders_and_manifests_are_named(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        build(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"cannot be read \(No such file"):
        build(tmp_path)
    for text in ("{", "[]", "null", '"x"', "[" * 100_000, "\xff", "{}"):
        (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
        with pytest.raises(UsageError, match=r"manifest\.json"):
            build(tmp_path)


def edited(path, value):
    """The manifest with one value replaced."""
    manifest = tiny_manifest()
    place = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return manifest


HOSTILE = {
    "name": (["name"], 'x"\nint system(void)', "name is not a C identifier"),
    "keyword": (["name"], "while", "name is not a C identifier"),
    "c_name": (["inputs", 0, "c_name"], "a; exit(1)", r"inputs\[0\]\.c_name is not a C identifier"),
    "version": (["version"], 2, "version 1"),
    "arena": (["arena"], ["static"], "arena is not"),
    "negative arena": (["arena_bytes"], -1, "arena_bytes is not"),
    "source outside": (["sources"], ["../x.c"], r"sources\[0\] is not"),
    "source is an option": (["sources"], ["-fplugin=x.c"], r"sources\[0\] is not"),
    "absolute source": (["sources"], ["/etc/x.c"], r"sources\[0\] is not"),
    "source twice": (["sources"], ["tiny.c", "tiny.c"], "sources are not different"),
    "no source": (["sources"], [], "at least one file"),
    "no output": (["outputs"], [], "at least one output"),
    "outputs no list": (["outputs"], {"a": 1}, "outputs is not a list"),
    "edge no object": (["outputs"], [1], r"outputs\[0\] is not an object"),
    "type": (["inputs", 0, "type"], "int8; x", r"inputs\[0\]\.type is not .*int8.*bool"),
    "unhashable type": (["inputs", 0, "type"], [], r"inputs\[0\]\.type is not .*int8.*bool"),
    "shape": (["inputs", 0, "shape"], [1, "2"], r"inputs\[0\]\.shape\[1\] is not"),
    "bool in shape": (["inputs", 0, "shape"], [True, 2], r"inputs\[0\]\.shape\[0\] is not"),
    "huge shape": (["inputs", 0, "shape"], [1 << 20, 1 << 20], "larger than C code"),
    "scale": (["inputs", 0, "quantized", "scale"], float("nan"), "NaN is no finite number"),
    "huge scale": (["inputs", 0, "quantized", "scale"], 10**400, "scale is not a positive number"),
    "order": (["tensors", 0, "order"], [0, 0, 1, 2], r"tensors\[0\]\.order is not"),
    "permutation": (["tensors", 1, "permutation"], [0, 1, 3], r"tensors\[1\]\.permutation is not"),
    "id twice": (["tensors", 0, "id"], 3, "tensors: the ids are not different"),
    "name twice": (["tensors", 0, "name"], "s", "tensors: the names are not different"),
    "states": (["states"], 5, "states is not a list"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_manifest_is_refused_before_anything_is_compiled(tmp_path, case):
    path, value, words = HOSTILE[case]
    with pytest.raises(UsageError, match=words):
        read_folder(write_tiny(tmp_path / "tiny", manifest=edited(path, value)))


def test_hostile_names_of_files_are_refused(tmp_path):
    folder = write_tiny(tmp_path / "tiny")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["../../etc/passwd"] = "0"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        UsageError, match=r"name '\.\./\.\./etc/passwd' in files is not the name of a file of the folder"
    ):
        read_folder(folder)


def test_all_problems_are_in_one_error(tmp_path):
    manifest = {**tiny_manifest(), "name": "9", "arena": "heap", "tensors": None}
    with pytest.raises(UsageError, match=r"name is not.*arena is not.*tensors is not"):
        read_folder(write_tiny(tmp_path / "tiny", manifest=manifest))


def test_names_of_the_onnx_file_never_reach_c(tmp_path):
    text = main_source(read_folder(write_tiny(tmp_path / "tiny")), Variant(proof=True))
    assert "in/image" not in text
    assert "scores" not in text


def test_flags_are_a_list(tmp_path):
    with pytest.raises(UsageError, match="one text"):
        build(write_tiny(tmp_path / "tiny"), flags="-O2")
