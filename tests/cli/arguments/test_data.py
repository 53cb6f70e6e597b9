"""Data on the command line: arrays, images, sounds, callables."""

import wave
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from linger import UsageError
from linger.cli.arguments.data import DataOptions, read_data
from linger.cli.arguments.options import ImageOptions, SoundOptions, read_numbers, read_sizes

pytestmark = pytest.mark.needs_torch
MODEL = nn.Linear(4, 3)


def read(path, **options):
    return read_data(str(path), MODEL, DataOptions(**options))


def stacked(samples, number=0):
    return torch.cat([piece.arguments[number] for piece in samples.pieces])


def test_arrays_are_arguments_in_order_and_labels_by_name(tmp_path, draw):
    x, n = draw.normal(size=(6, 4)), np.arange(6)
    np.savez(tmp_path / "d.npz", zz=x, a=n, y=n % 3)
    samples = read(tmp_path / "d.npz")
    assert stacked(samples).dtype == torch.float32
    assert stacked(samples, 1).tolist() == n.tolist()
    assert [int(p.labels) for p in samples.pieces] == (n % 3).tolist()
    assert not read(tmp_path / "d.npz", labels="none").has_labels
    assert [float(p.arguments[0][0, 0]) for p in read(tmp_path / "d.npz", limit=2).pieces] == [
        np.float32(x[0, 0]),
        np.float32(x[3, 0]),
    ]
    np.save(tmp_path / "y.npy", x)
    assert not read(tmp_path / "y.npy").has_labels  # the name of a file of one array says nothing


class Two(nn.Module):
    def forward(self, first, y, third=None, fourth=None):
        return first - y


def read_two(tmp_path, *names):
    np.savez(tmp_path / "d.npz", **{name: np.full((2, 1), i, np.float32) for i, name in enumerate(names)})
    samples = read_data(str(tmp_path / "d.npz"), Two(), DataOptions())
    return [float(a) for a in samples.pieces[0].arguments]


@pytest.mark.parametrize(
    ("names", "bound"),
    [
        (("first", "y"), [0, 1]),
        (("y", "first"), [1, 0]),
        (("third", "y", "first"), [2, 1, 0]),
        (("b", "a"), [0, 1]),
        (("label", "y", "first"), [2, 1]),
    ],
    ids=["same-order", "other-order", "optional", "other-names", "labels"],
)
def test_arrays_called_like_arguments_are_these_arguments(tmp_path, names, bound):
    assert read_two(tmp_path, *names) == bound


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("y", "frist"), "the arrays are y, frist, .*: frist is no argument"),
        (("y",), "first is missing"),
        (("first", "third"), "y is missing"),
    ],
    ids=["misspelt", "first-missing", "gap"],
)
def test_arrays_that_are_only_partly_called_like_arguments_are_refused(tmp_path, names, said):
    with pytest.raises(UsageError, match=said):
        read_two(tmp_path, *names)


class Named(nn.Module):
    def forward(self, first, second=None, fourth=None, *, third=None):
        return first


@pytest.mark.parametrize(
    ("names", "by_name"),
    [
        (("third", "first"), ["third"]),
        (("first", "third", "second"), ["third"]),
        (("second", "first"), []),
        (("fourth", "first"), ["fourth"]),
        (("a", "b"), []),
    ],
)
def test_arrays_of_arguments_that_are_taken_by_name(tmp_path, names, by_name):
    arrays = {name: np.full((2, 1), place, np.float32) for place, name in enumerate(names)}
    np.savez(tmp_path / "d.npz", **arrays)
    samples = read_data(str(tmp_path / "d.npz"), Named(), DataOptions())
    assert len(samples) == 2
    for piece in samples.pieces:
        assert list(piece.arguments.keywords) == by_name
        places = [name for name in ("first", "second") if name in names] or list(names)
        assert [float(a) for a in piece.arguments] == [names.index(name) for name in places]
        assert all(float(piece.arguments.keywords[name]) == names.index(name) for name in by_name)


def test_labels_of_a_file_of_their_own(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    np.save(tmp_path / "l.npy", np.array([2, 0, 1]))
    samples = read(tmp_path / "x.npy", labels=str(tmp_path / "l.npy"))
    assert [int(p.labels) for p in samples.pieces] == [2, 0, 1]


def image(path, color, size=(6, 4), mode="RGB"):
    from PIL import Image

    path.parent.mkdir(exist_ok=True)
    Image.new(mode, size, color).save(path)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ImageOptions(), [1.0, 0.2, 0.0]),
        (ImageOptions(scale="byte", mean=(127,), std=(128,)), [1.0, -76 / 128, -127 / 128]),
        (ImageOptions(scale="signed"), [1.0, -0.6, -1.0]),
        (ImageOptions(scale="imagenet"), [0.515 / 0.229, -0.256 / 0.224, -0.406 / 0.225]),
        (ImageOptions(mean=(1, 0.2, 0), std=(1, 1, 2)), [0.0, 0.0, 0.0]),
    ],
    ids=["unit", "byte", "signed", "imagenet", "own"],
)
def test_pixels_become_numbers(tmp_path, options, expected):
    image(tmp_path / "p" / "a.png", (255, 51, 0))
    found = stacked(read(tmp_path / "p", images=options))
    assert found.shape == (1, 3, 4, 6)
    # float32 divisions: a few units of 2^-24 of numbers up to 2.3
    assert torch.allclose(found[0, :, 0, 0], torch.tensor(expected), atol=1e-6)


def test_pictures_are_cut_to_one_size_and_sorted(tmp_path):
    image(tmp_path / "p" / "b10.png", 250, (30, 10), "L")
    image(tmp_path / "p" / "b2.jpg", 5, (10, 30), "L")
    image(tmp_path / "p" / "c.gif", 128, (16, 16), "P")
    (tmp_path / "p" / "readme.txt").write_text("no image")
    found = stacked(read(tmp_path / "p", images=ImageOptions(size=(8, 12), is_grey=True, scale="byte")))
    assert found.shape == (3, 1, 8, 12)
    assert found[:2, 0, 0, 0].tolist() == [5, 250]


GREYS = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
OF_16_BITS = [0, 0, 1, 128, 255]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_of_16_bits_the_upper_ones_are_used(tmp_path, name):
    from PIL import Image

    (tmp_path / "p").mkdir()
    if name == "a.pgm":
        (tmp_path / "p" / name).write_bytes(b"P5\n5 1\n65535\n" + GREYS.astype(">u2").tobytes())
    else:
        Image.fromarray(GREYS).save(tmp_path / "p" / name)
    found = stacked(read(tmp_path / "p", images=ImageOptions(scale="byte")))
    assert found[0, :, 0].tolist() == [OF_16_BITS] * 3
    grey = stacked(read(tmp_path / "p", images=ImageOptions(scale="byte", is_grey=True)))
    assert grey[0, 0, 0].tolist() == OF_16_BITS


def test_numbers_without_a_known_range_are_refused(tmp_path):
    from PIL import Image

    (tmp_path / "p").mkdir()
    Image.fromarray(GREYS.astype(np.int32)).save(tmp_path / "p" / "a.tif")
    Image.fromarray(GREYS.astype(np.float32)).save(tmp_path / "p" / "b.tif")
    with pytest.raises(UsageError, match=r"2 of 2 .* a\.tif \(its pixels are numbers of 32 bits; .*, b\.tif \("):
        read(tmp_path / "p")


@pytest.mark.parametrize(
    ("name", "mode", "color"),
    [
        ("a.png", "RGBA", (200, 100, 50, 0)),
        ("a.jpg", "CMYK", (55, 155, 205, 0)),
        ("a.tif", "CMYK", (55, 155, 205, 0)),
    ],
    ids=["transparent", "cmyk-jpeg", "cmyk-tiff"],
)
def test_colors_are_those_without_transparency(tmp_path, name, mode, color):
    image(tmp_path / "p" / name, color, (16, 16), mode)
    found = stacked(read(tmp_path / "p", images=ImageOptions(scale="byte")))
    # JPEG keeps a flat color within a rounding or two
    assert torch.allclose(found[0, :, 3, 3], torch.tensor([200.0, 100.0, 50.0]), atol=2 if name == "a.jpg" else 0)


def test_colors_of_a_palette_with_transparent_ones(tmp_path):
    from PIL import Image

    indexed = Image.new("P", (2, 1))
    indexed.putpalette([10, 20, 30, 200, 100, 50])
    indexed.putpixel((1, 0), 1)
    (tmp_path / "p").mkdir()
    indexed.save(tmp_path / "p" / "a.png", transparency=bytes([10, 200]))
    found = stacked(read(tmp_path / "p", images=ImageOptions(scale="byte")))
    assert found[0, :, 0].T.tolist() == [[10, 20, 30], [200, 100, 50]]


def test_a_photograph_is_turned_as_its_camera_was(tmp_path):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    pixels = np.zeros((16, 32), np.uint8)
    pixels[:, 16:] = 200
    (tmp_path / "p").mkdir()
    Image.fromarray(pixels).save(tmp_path / "p" / "a.png", exif=exif)
    found = stacked(read(tmp_path / "p", images=ImageOptions(scale="byte", is_grey=True)))
    assert found.shape == (1, 1, 32, 16)
    assert (found[0, 0, 0, 0], found[0, 0, -1, 0]) == (0, 200)


def test_large_images_are_read_one_after_the_other(tmp_path, monkeypatch):
    from PIL import ImageOps

    for i in range(6):
        image(tmp_path / "p" / f"{i}.{'jpg' if i % 2 else 'png'}", 9, (80, 160), "L")
    right, decoded, sizes = ImageOps.exif_transpose, [], []

    def noted(opened):
        assert [found for found in decoded if found() is not None] == [], "images are kept at their full size"
        turned = right(opened)
        decoded.append(weakref.ref(turned))
        sizes.append(turned.size)
        return turned

    monkeypatch.setattr(ImageOps, "exif_transpose", noted)
    options = ImageOptions(size=(10, 8), limit=3)
    assert stacked(read(tmp_path / "p", images=options)).shape == (3, 3, 10, 8)
    assert sizes == [(80, 160)] * 3
    sizes.clear()
    assert len(read(tmp_path / "p", images=ImageOptions(size=(10, 8)))) == 6
    assert sizes == [(80, 160), (20, 40)] * 3, "a JPEG need not be decoded at its full size"


def test_pictures_that_do_not_fit_into_memory(tmp_path):
    image(tmp_path / "p" / "a.png", 0)
    with pytest.raises(UsageError, match=r"1 images of 1000000x2000000 do not fit into memory"):
        read(tmp_path / "p", images=ImageOptions(size=(2_000_000, 1_000_000)))


def test_the_middle_of_a_image_is_kept(tmp_path):
    from PIL import Image

    pixels = np.zeros((4, 12, 3), np.uint8)
    pixels[:, 4:8] = 200
    (tmp_path / "p").mkdir()
    Image.fromarray(pixels).save(tmp_path / "p" / "a.png")
    found = stacked(read(tmp_path / "p", images=ImageOptions(size=(4, 4), scale="byte")))
    assert (found == 200).all()


def test_sub_folders_are_classes(tmp_path):
    for name in ("dog", "ant", "cat"):
        image(tmp_path / name / "1.png", 0)
    samples = read(tmp_path)
    assert [int(p.labels) for p in samples.pieces] == [0, 1, 2]
    assert samples.what.endswith("3 classes")


def test_every_image_that_cannot_be_read_is_named(tmp_path):
    image(tmp_path / "p" / "a.png", 0)
    (tmp_path / "p" / "b.png").write_bytes(b"nothing")
    (tmp_path / "p" / "c.jpg").write_bytes(b"")
    (tmp_path / "p" / "d.png").write_bytes((tmp_path / "p" / "a.png").read_bytes()[:40])
    with pytest.raises(UsageError, match=r"3 of 4 images cannot be read: b\.png \(no image\), c\.jpg .*, d\.png \("):
        read(tmp_path / "p")


def sound(path, integers, width=2, rate=16000, channels=1):
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        shift = 128 if width == 1 else 0
        file.writeframes(b"".join((i + shift).to_bytes(width, "little", signed=width > 1) for i in integers))


@pytest.mark.parametrize("width", [1, 2, 3, 4], ids=lambda width: f"{8 * width}-bits")
def test_samples_are_between_minus_one_and_one(tmp_path, width):
    half = 1 << (8 * width - 2)
    sound(tmp_path / "s" / "a.wav", [half, -half, 0, -2 * half], width)
    assert stacked(read(tmp_path / "s")).tolist() == [[0.5, -0.5, 0.0, -1.0]]


def test_channels_are_averaged_and_windows_cut(tmp_path):
    sound(tmp_path / "s" / "a.wav", [16384, 0, 16384, 16384, 0, 0, 1, 1], channels=2)
    sound(tmp_path / "s" / "b.wav", [-16384])
    samples = read(tmp_path / "s", sounds=SoundOptions(rate=16000, length=3, has_channel=True))
    assert stacked(samples).tolist() == [[[0.25, 0.5, 0.0]], [[-0.5, 0.0, 0.0]]]
    whole = read(tmp_path / "s")
    assert stacked(whole).shape == (2, 4)
    assert "2 windows of 4 samples" in whole.what


def test_a_broken_image_is_named_with_its_folder(tmp_path):
    image(tmp_path / "a" / "good.png", 0)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "bad.jpg").write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"cannot be read: b/bad\.jpg \(no image\)"):
        read(tmp_path)


def test_sounds_that_do_not_fit_are_named(tmp_path):
    sound(tmp_path / "s" / "a.wav", [1, 2])
    sound(tmp_path / "s" / "b.wav", [1], rate=8000)
    with pytest.raises(UsageError, match=r"different rates: a\.wav 16000, b\.wav 8000"):
        read(tmp_path / "s")
    (tmp_path / "s" / "c.wav").write_bytes(b"RIFF")
    sound(tmp_path / "s" / "d.wav", [])
    with pytest.raises(
        UsageError, match=r"3 of 4 sounds cannot be read at 16000 .*b\.wav \(8000 .*c\.wav .*d\.wav \(it is empty"
    ):
        read(tmp_path / "s", sounds=SoundOptions(rate=16000))


def test_every_damaged_sound_is_named(tmp_path):
    folder = tmp_path / "s"
    sound(folder / "a.wav", [1, 2, 3, 4])
    right = (folder / "a.wav").read_bytes()
    (folder / "cut.wav").write_bytes(right[:-2])
    (folder / "endless.wav").write_bytes(right[:4] + b"\xff" * 4 + right[8:40] + b"\xf0\xff\xff\x7f" + right[44:])
    (folder / "list.wav").write_bytes(right[:12] + b"LIST" + b"\xff\xff\xff\x3b" + right[12:])
    (folder / "wide.wav").write_bytes(right[:34] + b"\x40\x00" + right[36:])
    with pytest.raises(UsageError) as told:
        read(folder)
    assert (
        "4 of 5 sounds cannot be read: cut.wav (the file ends too early), endless.wav (the file ends too early), "
        "list.wav (the lengths in it contradict each other), wide.wav (samples of 64 bits)." in str(told.value)
    )


@pytest.mark.parametrize("length", [10**13, 10**19], ids=["memory", "numbers"])
def test_windows_that_do_not_fit_into_memory(tmp_path, length):
    sound(tmp_path / "s" / "a.wav", [1])
    with pytest.raises(UsageError, match=f"1 windows of {length} samples do not fit into memory"):
        read(tmp_path / "s", sounds=SoundOptions(length=length))


def test_of_many_windows_only_the_chosen_ones_are_read(tmp_path, monkeypatch):
    sound(tmp_path / "s" / "a.wav", range(7))
    sound(tmp_path / "s" / "b.wav", range(10, 16))
    sound(tmp_path / "s" / "c.wav", [20])
    right, asked = wave.Wave_read.readframes, []
    monkeypatch.setattr(wave.Wave_read, "readframes", lambda self, n: (asked.append(n), right(self, n))[1])
    samples = read(tmp_path / "s", sounds=SoundOptions(length=2, limit=4))
    # 3 + 3 + 1 windows, of which those at 0, 1, 3 and 5 are used
    assert (stacked(samples) * 2**15).tolist() == [[0, 1], [2, 3], [10, 11], [14, 15]]
    assert asked == [1] * 3 + [2] * 4
    assert samples.what.startswith("2 sounds")
    assert "4 windows of 2 samples" in samples.what


def test_windows_of_a_sound_belong_together(tmp_path):
    sound(tmp_path / "s" / "a.wav", range(5))
    (tmp_path / "s" / "t").mkdir()
    sound(tmp_path / "s" / "t" / "a.wav", range(3))
    np.save(tmp_path / "l.npy", np.arange(3))
    for labels in ("", "none", str(tmp_path / "l.npy")):
        samples = read(tmp_path / "s", sounds=SoundOptions(length=2), labels=labels)
        assert [piece.group for piece in samples.pieces] == ["a.wav", "a.wav", "t/a.wav"], labels


CODE = """
import torch
from torch.utils.data import TensorDataset
x, y = torch.zeros(6, 4), torch.arange(6) % 3
def rows(): return x, y
def loader(): return ((x[i : i + 2], y[i : i + 2]) for i in (0, 2, 4))
def dataset(): return TensorDataset(x, y)
def needs(n): return n
"""


@pytest.mark.parametrize(
    ("name", "pieces", "are_rows"),
    [("rows", 6, True), ("loader", 3, False), ("dataset", 2, False), ("x", 6, True)],
)
def test_a_callable_gives_data(tmp_path, name, pieces, are_rows):
    (tmp_path / "data_file.py").write_text(CODE)
    samples = read(f"{tmp_path}/data_file.py:{name}", batch=3)
    assert (len(samples), samples.are_rows, samples.has_labels) == (pieces, are_rows, name != "x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "nosuch", "there is no such file or folder. Give an .npz or .npy file, a folder"),
        (lambda p: p / "nosuch.npz", "there is no such file"),
        (lambda p: f"{p}/nosuch.py:data", "there is no such file"),
        (lambda p: f"{p}/data_file.py:nosuch", "there is no 'nosuch' in it"),
        (lambda p: f"{p}/data_file.py:needs", "it needs arguments (n)"),
        (lambda p: p / "data_file.py", "this is no file of arrays"),
        (lambda p: p / "empty", "the folder is empty"),
        (lambda p: p / "other", "none of its 1 files is an image or a sound"),
        (lambda p: p / "both", "it holds 1 images and 1 sounds"),
        (lambda p: p / "sizes", "the images have 2 sizes (6x4, 8x8). Say which one the model takes, for example --size 224"),
        (lambda p: p / "text.npz", "not a readable .npz"),
        (lambda p: p / "labels.npz", "there is no array of inputs in it"),
        (lambda p: p / "twice.npz", "y, label all look like labels"),
    ],
    ids=[
        "nothing-there",
        "no-npz",
        "no-module",
        "no-name",
        "needs-arguments",
        "no-callable",
        "empty",
        "other",
        "both",
        "sizes",
        "text",
        "only-labels",
        "labels-twice",
    ],
)  # fmt: skip
def test_wrong_data_are_one_sentence(tmp_path, make, message):
    (tmp_path / "data_file.py").write_text(CODE)
    for folder in ("empty", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "other" / "a.txt").write_text("")
    image(tmp_path / "both" / "a.png", 0)
    sound(tmp_path / "both" / "a.wav", [0])
    image(tmp_path / "sizes" / "a.png", 0)
    image(tmp_path / "sizes" / "b.png", 0, (8, 8))
    (tmp_path / "text.npz").write_text("text")
    np.savez(tmp_path / "labels.npz", labels=np.zeros(2))
    np.savez(tmp_path / "twice.npz", x=np.zeros(2), y=np.zeros(2), label=np.zeros(2))
    with pytest.raises(UsageError) as told:
        read(make(tmp_path))
    assert message in str(told.value)


def test_sizes_and_numbers():
    assert read_sizes("224", "--size") == (224,)
    assert read_sizes("1x3x8×9", "--shape") == (1, 3, 8, 9)
    assert read_numbers("0.5,1,-2", "--mean") == (0.5, 1.0, -2.0)
    assert read_numbers(None, "--mean") is None
    for text in ("0", "8x0", "big", "-3", "1x2x3x4x5"):
        with pytest.raises(UsageError, match=f"--size {text}: expected sizes above 0"):
            read_sizes(text, "--size")
    with pytest.raises(UsageError, match="--std a: expected one number"):
        read_numbers("a", "--std")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ImageOptions(mean=(1, 2)), "--mean: 2 numbers for 3 channels"),
        (ImageOptions(is_grey=True, scale="imagenet"), "--mean: 3 numbers for 1 channels"),
        (ImageOptions(std=(0,)), "--std: a deviation of 0 or less"),
    ],
    ids=["two-means", "grey-imagenet", "zero"],
)
def test_means_that_do_not_fit(tmp_path, options, message):
    image(tmp_path / "p" / "a.png", 0)
    with pytest.raises(UsageError, match=message):
        read(tmp_path / "p", images=options)


def test_batches_of_a_callable_lose_their_labels_if_asked(tmp_path):
    (tmp_path / "data_file.py").write_text(CODE)
    samples = read(f"{tmp_path}/data_file.py:loader", labels="none")
    assert (len(samples), samples.are_rows, samples.has_labels) == (3, False, False)
    assert [tuple(piece.arguments[0].shape) for piece in samples.pieces] == [(2, 4)] * 3
    assert samples.what == read(f"{tmp_path}/data_file.py:loader").what
