"""Networks with one scale per channel and with unsigned bytes as C: every tensor is the file's, here and on emulated cores."""

import re

import numpy as np
import pytest

from linger.c import Program, build, export
from tests.support.c_compiler import require_compiler
from tests.support.c_folders import run_test_program
from tests.support.c_networks import (
    FLAGS,
    NUMBER_SYSTEMS,
    assert_proven,
    compared,
    load_network,
    picture_network,
    prove,
    voice_network,
)
from tests.support.c_targets import require_target
from tests.support.integer_functions import VARIANTS, require_variant
from tests.support.streams import dialect, network

NETWORKS = {
    "picture": picture_network,
    "odd picture": lambda numbers: picture_network(numbers, seed=9, channels=12, size=6),
    "LSTM": voice_network,
    "GRU": lambda numbers: voice_network(numbers, op="GRUInt"),
}
DEVICES = ["cortex-m0", "cortex-m4", "cortex-m55", "rv32imac"]
BOTH = NUMBER_SYSTEMS[-1]


@pytest.mark.parametrize("numbers", NUMBER_SYSTEMS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.thin(every=2)
def test_every_tensor_is_the_files(name, numbers, tmp_path):
    require_compiler()
    assert_proven(prove(NETWORKS[name](numbers), tmp_path / "c"))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["picture", "LSTM"])
@pytest.mark.thin(every=2)
def test_every_instruction_set_of_this_machine_gives_the_same(name, variant, tmp_path):
    flags = (*FLAGS, *require_variant(variant).options)
    assert_proven(prove(NETWORKS[name](BOTH), tmp_path / "c", flags=flags))


@pytest.mark.devices
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("numbers", NUMBER_SYSTEMS[1:])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_tensor_is_the_files_on_devices(name, numbers, target, tmp_path):
    require_target(target)
    assert_proven(prove(NETWORKS[name](numbers), tmp_path / "c", target=target))


@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_reach_beyond_those_of_signed_bytes(name):
    loaded = load_network(NETWORKS[name](BOTH))
    found = loaded.reference.intermediates(loaded.example)
    unsigned = [array for array in found.values() if array.dtype == np.uint8]
    assert unsigned
    assert max(int(array.max()) for array in unsigned) > (127 if "picture" in name else 64)


def test_the_test_program_of_a_folder_passes(tmp_path):
    require_compiler()
    export(picture_network(), tmp_path / "c", name="net")
    done = run_test_program(tmp_path / "c", tmp_path)
    assert done.returncode == 0, done.stdout
    assert "every output is as it must be" in done.stdout


# inputs and outputs


def unsigned_edges():
    """Unsigned bytes come in and go out; real numbers become unsigned ones."""

    def build_graph(g, x, image):
        q = dialect(g, "Quant", image, data_bits=8, scale_x=16.0, o_unsigned=1)
        total = dialect(g, "iqAdd", x, q, scale_x=16.0, scale_y=16.0, scale_o=8.0, o_unsigned=1)
        return g.op("MaxPool", total, kernel_shape=[2, 2], strides=[2, 2]), dialect(g, "Dequant", q, scale_o=16.0)

    inputs = "uint8[1,3,4,4] x; float[1,3,4,4] image"
    return network(build_graph, inputs=inputs, outputs="uint8[1,3,2,2] y; float[1,3,4,4] z")


def test_unsigned_inputs_and_outputs_are_uint8_t(tmp_path):
    require_compiler()
    samples = [
        {
            "x": np.random.default_rng(seed).integers(0, 256, (1, 3, 4, 4)).astype(np.uint8),
            "image": np.random.default_rng(seed).uniform(-9, 20, (1, 3, 4, 4)).astype(np.float32),
        }
        for seed in range(4)
    ]
    assert_proven(prove(unsigned_edges(), tmp_path / "c", samples))
    header = next((tmp_path / "c").glob("network.h")).read_text(encoding="utf-8")
    assert "_run(const uint8_t *x, const float *image, uint8_t *y, float *z);" in header
    assert "_run_q(const uint8_t *x, const uint8_t *image, uint8_t *y, uint8_t *z);" in header
    assert "limited to 0 ... 255" in header


# the numbers of a channel by hand


def test_shifts_and_biases_by_hand(tmp_path):
    """Channel 0: (3·20 + 4)/8 = 8; channel 1 is at twice the scale: (3·20 + 10 + 8)/16 = 4.9 → 4; channel 2 at 1/32."""
    require_compiler()

    def build_graph(g, x):
        w = np.array([[20], [20], [-20]], np.int8)
        b = np.array([0, 10, 0], np.int32)
        widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
        scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": 128.0, "exponents_w": [0, 1, 2]}
        return dialect(g, "LinearInt", x, w, b, **widths, **scales)

    model = network(build_graph, inputs="int8[1,1] x", outputs="int8[1,3] y")
    folder = export(model, tmp_path / "c", name="net")
    weights = (folder / "net_weights.c").read_text(encoding="utf-8")
    assert re.search(r"\n\s+4, 18, 16,\n", weights)  # 0 + 8/2, 10 + 16/2, 0 + 32/2: the biases round
    with build(folder, flags=FLAGS) as program:
        # −60/32 = −1.9 → −2
        assert program.run(None, {"x": np.array([[3]], np.int8)})[0].tolist() == [[8, 4, -2]]


EDGES = {
    "left shifts": ([0, 0, 0, 0], [0, 1, 2, 9], 256.0),
    "shifts of all bits": ([0, 9, -9, 1000], [0, 12, 24, 30], 2.0**-4),
    "a bias at the end of 32 bits": ([2**31 - 1, -(2**31), 0, 9], [0, 3, 6, 9], 2.0**-12),
    "no bias of a channel rounds": ([5, -5, 9, -9], [4, 3, 2, 1], 2.0**11),
}


@pytest.mark.parametrize("is_shared", [False, True], ids=["own biases", "a bias of two layers"])
@pytest.mark.parametrize(("bias", "exponents", "scale_o"), EDGES.values(), ids=EDGES)
def test_channels_at_the_ends_of_what_can_be(bias, exponents, scale_o, is_shared, tmp_path):
    require_compiler()
    draw = np.random.default_rng(2)

    def build_graph(g, x):
        widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
        b = np.array(bias, np.int32)
        for turn in range(2 if is_shared else 1):  # the same numbers, with other shifts
            w = draw.integers(-128, 128, (4, 4)).astype(np.int8)
            scales = {"scale_x": 16.0, "scale_w": 64.0, "scale_o": scale_o}
            x = dialect(g, "LinearInt", x, w, b, **widths, **scales, exponents_w=exponents[:: -1 if turn else 1])
        return x

    model = network(build_graph, inputs="int8[1,4] x", outputs="int8[1,4] y")
    assert_proven(prove(model, tmp_path / "c"))


# sums at the ends of bytes by hand

_LOW, _HIGH, _HALF = [-128] * 20, [127] * 20, [127] * 10 + [-128] * 10
_ROWS = [_LOW, _HIGH, _HALF, _LOW, _HIGH, _HALF, _LOW, _HIGH, _HALF, _HIGH, _LOW]


def rows_of_bytes(outputs: int, rows: int):
    """Rows of 20 numbers, all of them 255 or only the first one, and weights at both ends; the bias is 8192.

    −128·255·20 = −652 800 = −79.7·8192 → −80, 127·255·20 = 79.1·8192 → 79, −1·255·10 = −0.3·8192 → 0,
    −128·255 = −3.98·8192 → −4, 127·255 = 3.95·8192 → 4; and 1 of the bias.
    """

    def build_graph(g, x):
        widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
        scales = {"scale_x": 128.0, "scale_w": 64.0, "scale_o": 1.0}
        w, b = np.array(_ROWS[:outputs], np.int8), np.full(outputs, 8192, np.int32)
        return dialect(g, "LinearInt", x, w, b, **widths, **scales)

    x = np.array([[255] * 20, [255] + [0] * 19], np.uint8)[:rows]
    sums = [[-80, 79, 0, -80, 79, 0, -80, 79, 0, 79, -80], [-4, 4, 4, -4, 4, 4, -4, 4, 4, 4, -4]]
    wanted = np.array(sums)[:rows, :outputs] + 1
    return network(build_graph, inputs=f"uint8[{rows},20] x", outputs=f"int8[{rows},{outputs}] y"), x, wanted


def padded_bytes(channels: int, *, group: int):
    """Windows of 3×3 over 3×3 numbers, all of them 255, and weights of −128: 4, 6 or 9 taps lie inside the image.

    A tap is −128·255 = −3.984·2¹³, so the sums of one channel are −15.9, −23.9 and −35.9. Those of 20 channels are 20 times as much,
    in steps of 16·2¹³: −19.9, −29.9 and −44.8.
    """
    corner, edge, middle = (-16, -24, -36) if group == channels else (-20, -30, -45)
    scale_w = 64.0 if group == channels else 1024.0

    def build_graph(g, x):
        window = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": group}
        widths = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8}
        w = np.full((channels, channels // group, 3, 3), -128, np.int8)
        return dialect(g, "Conv2dInt", x, w, **window, **widths, scale_x=128.0, scale_w=scale_w, scale_o=1.0)

    shape = (1, channels, 3, 3)
    wanted = np.broadcast_to([[corner, edge, corner], [edge, middle, edge], [corner, edge, corner]], shape)
    text = ",".join(map(str, shape))
    return (
        network(build_graph, inputs=f"uint8[{text}] x", outputs=f"int8[{text}] y"),
        np.full(shape, 255, np.uint8),
        wanted,
    )


SUMS = {
    **{f"{n} sums of a row": lambda n=n: rows_of_bytes(n, 1) for n in (1, 2, 7, 11)},
    **{f"{n} sums of two rows": lambda n=n: rows_of_bytes(n, 2) for n in (1, 3, 5, 11)},
    "padded, short": lambda: padded_bytes(1, group=1),
    "padded": lambda: padded_bytes(20, group=1),
    "padded depthwise": lambda: padded_bytes(17, group=17),
}


def sums_of(folder, x, *, file="net.c", pattern="", replacement="", **options) -> list:
    """What a program of the folder gives, with a mistake where one is asked for."""
    path = folder / file
    text = path.read_text(encoding="utf-8")
    assert re.search(pattern, text)
    path.write_text(re.sub(pattern, replacement, text, count=1) if pattern else text, encoding="utf-8")
    with build(folder, check_files=not pattern, **options) as program:
        return program.run(None, {"x": x})[0].tolist()


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_unsigned_bytes_by_hand(name, tmp_path):
    require_compiler()
    model, x, wanted = SUMS[name]()
    assert sums_of(export(model, tmp_path / "c", name="net"), x, flags=FLAGS) == wanted.tolist()


@pytest.mark.devices
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_unsigned_bytes_by_hand_on_devices(name, target, tmp_path):
    require_target(target)
    model, x, wanted = SUMS[name]()
    assert sums_of(export(model, tmp_path / "c", name="net"), x, target=target) == wanted.tolist()


# planted faults


_CORRECTION = r'(#define LINGER_CORRECT.* X_SUM ", lsl #7\\n\\t")'
HELIUM_FAULTS = {
    "127 instead of 128": (_CORRECTION, r'\1 "add " SUM ", " SUM ", " X_SUM "\\n\\t"', "7 sums of a row"),
    "weights raised by 127": ("vmov.i8 q4, #128", "vmov.i8 q4, #127", "11 sums of two rows"),
    "no correction": (_CORRECTION, r'#define LINGER_CORRECT(SUM, X_SUM) ""', "padded, short"),
    "what lies outside counts": (r"state->whole = length;", "state->whole = padded;", "padded"),
    "sums of x that are not kept": (r"strd r6, r12, \[r0, #56\]", "strd r6, r6, [r0, #56]", "11 sums of two rows"),
    "signed windows": (r"vldrb\.u16 q0", "vldrb.s16 q0", "padded depthwise"),
}


@pytest.mark.devices
@pytest.mark.parametrize(("pattern", "replacement", "name"), HELIUM_FAULTS.values(), ids=HELIUM_FAULTS)
def test_a_fault_of_unsigned_bytes_is_found_on_helium(pattern, replacement, name, tmp_path):
    require_target("cortex-m55")
    model, x, wanted = SUMS[name]()
    folder = export(model, tmp_path / "c", name="net")
    file = "linger_depthwise.h" if "depthwise" in name else "linger_dots.h"
    given = sums_of(folder, x, file=file, pattern=pattern, replacement=replacement, target="cortex-m55")
    assert given != wanted.tolist()


def faulty(folder, pattern, replacement) -> Program:
    """The program with a mistake in its text, which must have the place for it."""
    path = folder / "net.c"
    text = path.read_text(encoding="utf-8")
    broken = re.sub(pattern, replacement, text)
    assert broken != text
    path.write_text(broken, encoding="utf-8")
    return build(folder, flags=("-O1", "-std=c99", "-w"), check_files=False)


SHIFT = r">> \(int32_t\)(linger_table_\d+)"
FAULTS = {
    "the shift of the first channel": (rf"{SHIFT}\[[^\]]+\]", r">> (int32_t)\1[0]"),
    "groups forgotten": (rf"{SHIFT}\[i\d+ \* \d+ \+ (i\d+)\]", r">> (int32_t)\1[\2]"),
    "blocks forgotten": (rf"{SHIFT}\[o\d+ \+ (i\d+)\]", r">> (int32_t)\1[\2]"),
    "the next channel": (rf"{SHIFT}\[([^\]]+)\]", r">> (int32_t)\1[(\2) ^ 1]"),
    "signed data": ("linger_dots_u8_8_32", "linger_dots_8_8_32"),
    "signed windows": ("linger_depthwise_u8_8_32", "linger_depthwise_8_8_32"),
    "a signed pool": ("linger_window_max_u8", "linger_window_max_8"),
    "signed ends": (r"0, 255\)", "-128, 127)"),
}


@pytest.mark.parametrize(("pattern", "replacement"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found(pattern, replacement, tmp_path):
    require_compiler()
    model = picture_network(channels=32)  # so many that they come in blocks
    folder = export(model, tmp_path / "c", name="net")
    loaded = load_network(model)
    wanted = [loaded.reference.intermediates(loaded.example)]
    with build(folder, flags=FLAGS) as program:
        assert compared(program, [loaded.example], wanted).differing == ()
    with faulty(folder, pattern, replacement) as program:
        assert compared(program, [loaded.example], wanted).differing
