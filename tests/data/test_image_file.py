"""Decoding: the right way up, the right values, or an error that names the file."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import resize

from rfdetr_train.data import image_file
from rfdetr_train.data.image_file import check_image, read_image
from rfdetr_train.errors import UserError

NOISE = np.random.default_rng(0).integers(0, 255, (200, 300, 3), dtype=np.uint8)


def jpeg_bytes() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(NOISE).save(buffer, "JPEG")
    return buffer.getvalue()


def test_pixels_of_a_png(tmp_path):
    Image.fromarray(NOISE).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png")
    assert image.shape == (3, 200, 300)
    assert np.array_equal(image.permute(1, 2, 0).numpy(), NOISE)


def test_exif_orientation(tmp_path, write_picture):
    """Stored as 300x200 with orientation 6 (turn by 90 degrees clockwise to view), drawn upright as 200x300."""
    write_picture(tmp_path / "upright.png", [(20, 30, 50, 60)], size=(200, 300))
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(tmp_path / "upright.png") as upright:
        stored = upright.transpose(Image.Transpose.ROTATE_90)
    assert stored.size == (300, 200)
    stored.save(tmp_path / "a.jpg", exif=exif, quality=95)
    assert check_image(tmp_path / "a.jpg") == (300, 200)
    image = read_image(tmp_path / "a.jpg")
    assert image.shape == (3, 300, 200)
    mean = image[:, 30:90, 20:70].float().mean(dim=(1, 2)).tolist()
    assert mean == pytest.approx((200, 30, 30), abs=3)


ORIENTATIONS = {  # by EXIF's number: where the picture's first row and column are when it is viewed; its top left is A
    1: "AB/CD",
    2: "BA/DC",
    3: "DC/BA",
    4: "CD/AB",
    5: "AC/BD",
    6: "CA/DB",
    7: "DB/CA",
    8: "BD/AC",
}
COLOURS = {"A": (200, 30, 30), "B": (30, 180, 40), "C": (40, 60, 220), "D": (230, 230, 230)}


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_every_orientation_in_every_format(tmp_path, name, orientation):
    """Four fields of 16x32 px, A and B above C and D, stored as they are and viewed as the table says."""
    stored = Image.new("RGB", (32, 64))
    for number, colour in enumerate(COLOURS.values()):
        x, y = 16 * (number % 2), 32 * (number // 2)
        stored.paste(colour, (x, y, x + 16, y + 32))
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"quality": 95} if name.endswith("jpg") else {"lossless": True} if name.endswith("webp") else {}
    stored.save(tmp_path / name, exif=exif, **lossless)
    height, width = (64, 32) if orientation < 5 else (32, 64)
    assert check_image(tmp_path / name) == (height, width)
    image = read_image(tmp_path / name)
    assert image.shape == (3, height, width)
    for row, fields in enumerate(ORIENTATIONS[orientation].split("/")):
        for column, field in enumerate(fields):
            y, x = (2 * row + 1) * height // 4, (2 * column + 1) * width // 4
            assert image[:, y, x].tolist() == pytest.approx(COLOURS[field], abs=4)


def test_broken_exif_data_leave_the_picture_as_it_is_stored(tmp_path, monkeypatch):
    Image.fromarray(NOISE).save(tmp_path / "a.png")

    def getexif(_image):
        raise SyntaxError("not a TIFF file (header b'xx' not valid)")

    monkeypatch.setattr(Image.Image, "getexif", getexif)
    assert check_image(tmp_path / "a.png") == (200, 300)
    assert read_image(tmp_path / "a.png").shape == (3, 200, 300)


def of_mode(mode: str, value: object, size=(16, 8)) -> Image.Image:
    return Image.new(mode, size, value)  # type: ignore[arg-type]


def palette(colour: tuple[int, int, int]) -> Image.Image:
    picture = Image.new("P", (16, 8), 1)
    picture.putpalette([0, 0, 0, *colour] + [0] * 762)
    return picture


def numbers(value: float, dtype: str) -> Image.Image:
    return Image.fromarray(np.full((8, 16), value, dtype=dtype))


ORANGE = (250, 130, 10)
PICTURES = {  # what is saved, how, and the RGB that it shows
    "L": (of_mode("L", 77), "a.png", {}, (77, 77, 77)),
    "L JPEG": (of_mode("L", 77), "a.jpg", {}, (77, 77, 77)),
    "LA, alpha ignored": (of_mode("LA", (77, 9)), "a.png", {}, (77, 77, 77)),
    "1, white": (of_mode("1", 1), "a.png", {}, (255, 255, 255)),
    "1, black": (of_mode("1", 0), "a.tif", {"compression": "group4"}, (0, 0, 0)),
    "P": (palette(ORANGE), "a.png", {}, ORANGE),
    "P GIF": (palette(ORANGE), "a.gif", {}, ORANGE),
    "P, one colour transparent": (palette(ORANGE), "a.png", {"transparency": 1}, ORANGE),
    "P, alpha per colour": (palette(ORANGE), "a.png", {"transparency": bytes([0, 128])}, ORANGE),
    "RGB with a transparent colour": (of_mode("RGB", ORANGE), "a.png", {"transparency": ORANGE}, ORANGE),
    "RGBA, alpha ignored": (of_mode("RGBA", (*ORANGE, 0)), "a.png", {}, ORANGE),
    "RGBA WebP": (of_mode("RGBA", (*ORANGE, 128)), "a.webp", {"lossless": True}, ORANGE),
    "RGB BMP": (of_mode("RGB", ORANGE), "a.bmp", {}, ORANGE),
    "RGB PPM": (of_mode("RGB", ORANGE), "a.ppm", {}, ORANGE),
    "CMYK TIFF: magenta and yellow are red": (of_mode("CMYK", (0, 255, 255, 0)), "a.tif", {}, (255, 0, 0)),
    "CMYK JPEG, Adobe's inverted": (of_mode("CMYK", (0, 255, 255, 0)), "a.jpg", {"quality": 100}, (255, 0, 0)),
    "CMYK JPEG, half black": (of_mode("CMYK", (0, 0, 0, 128)), "a.jpg", {"quality": 100}, (127, 127, 127)),
    "YCbCr TIFF: full red": (of_mode("YCbCr", (76, 85, 255)), "a.tif", {}, (254, 0, 0)),
    "I;16 PNG": (numbers(0xABCD, "uint16"), "a.png", {}, (0xAB,) * 3),
    "I;16 TIFF": (numbers(0xABCD, "uint16"), "a.tif", {}, (0xAB,) * 3),
    "I;16B TIFF": (numbers(0xABCD, ">u2"), "a.tif", {}, (0xAB,) * 3),
    "I TIFF": (numbers(0xABCD, "int32"), "a.tif", {}, (0xAB,) * 3),
    "F TIFF": (numbers(0.5, "float32"), "a.tif", {}, (128, 128, 128)),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_every_mode_becomes_the_rgb_that_it_shows(tmp_path, kind):
    picture, name, options, rgb = PICTURES[kind]
    picture.save(tmp_path / name, **options)
    assert check_image(tmp_path / name) == (8, 16)
    image = read_image(tmp_path / name)
    assert image.dtype == torch.uint8
    assert image.shape == (3, 8, 16)
    assert image.is_contiguous(memory_format=torch.channels_last) or image.permute(1, 2, 0).is_contiguous()
    for y, x in ((0, 0), (7, 15)):
        assert image[:, y, x].tolist() == pytest.approx(rgb, abs=2 if name.endswith("jpg") else 0)


def test_sixteen_bits_of_three_channels(tmp_path):
    """Pillow writes none, so by hand: one pixel of (0xABCD, 0x1234, 0xFF00) in a PNG."""
    pixel = b"\x00" + bytes.fromhex("abcd1234ff00")
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(pixel)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in chunks)
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    assert read_image(tmp_path / "a.png").flatten().tolist() == [0xAB, 0x12, 0xFF]


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        (70000, "int32", "its values run from 70000 to 70000"),
        (-1, "int32", "its values run from -1 to -1"),
        (255.0, "float32", "floating-point values run from 255 to 255; scale them to 0 to 1"),
        (-0.1, "float32", "from -0.1 to -0.1"),
        (float("nan"), "float32", "from nan to nan"),
    ],
)
@pytest.mark.parametrize("read", [read_image, check_image])
def test_numbers_that_have_no_colour(tmp_path, value, dtype, reason, read):
    numbers(value, dtype).save(tmp_path / "a.tif")
    with pytest.raises(UserError, match=rf"a\.tif: .*{reason}"):
        read(tmp_path / "a.tif")


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.webp", "a.tif", "a.mpo"])
def test_of_several_frames_the_first(tmp_path, name):
    first, second = of_mode("RGB", ORANGE), of_mode("RGB", (0, 0, 255))
    first.save(tmp_path / name, save_all=True, append_images=[second])
    with Image.open(tmp_path / name) as picture:
        assert picture.n_frames == 2
    assert check_image(tmp_path / name) == (8, 16)
    assert read_image(tmp_path / name)[:, 4, 8].tolist() == pytest.approx(ORANGE, abs=6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (jpeg_bytes()[: len(jpeg_bytes()) // 2], "truncated"),
        (b"", "cannot identify"),
        (b"<html><body>404</body></html>", "cannot identify"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify"),  # would start Ghostscript
        (None, "does not exist"),
        ("folder", "is a folder"),
        ("pipe", "is a folder, pipe or device"),  # opening it would wait for ever
        ("dangling link", "does not exist"),
    ],
)
@pytest.mark.parametrize("read", [read_image, check_image])
def test_what_is_no_picture(tmp_path, content, reason, read):
    path = tmp_path / "x.jpg"
    if content == "folder":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif content == "dangling link":
        path.symlink_to(tmp_path / "nowhere.jpg")
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", ["png", "bmp", "webp", "gif"])
def test_other_formats_cut_in_half(tmp_path, suffix):
    Image.fromarray(NOISE).save(tmp_path / f"a.{suffix}")
    assert check_image(tmp_path / f"a.{suffix}") == (200, 300)
    whole = (tmp_path / f"a.{suffix}").read_bytes()
    (tmp_path / f"b.{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=rf"b\.{suffix}: cannot be read as a picture"):
        check_image(tmp_path / f"b.{suffix}")


def test_bytes_behind_the_end_do_no_harm(tmp_path):
    for name, padding in (("a.jpg", b"\0" * 100), ("b.jpg", b"some maker's note")):
        (tmp_path / name).write_bytes(jpeg_bytes() + padding)
        assert check_image(tmp_path / name) == (200, 300)


def test_a_decompression_bomb(tmp_path):
    Image.new("1", (20000, 10000)).save(tmp_path / "bomb.png")
    for read in (read_image, check_image):
        with pytest.raises(UserError, match=r"bomb\.png: 20000x10000 pixels .*data\.max_megapixels=150;"):
            read(tmp_path / "bomb.png")


def test_a_bomb_of_twenty_bytes(tmp_path):
    (tmp_path / "bomb.pgm").write_bytes(b"P5 60000 60000 255\n")
    for read in (read_image, check_image):
        with pytest.raises(UserError, match=r"bomb\.pgm: 60000x60000 pixels .*data\.max_megapixels=3000;"):
            read(tmp_path / "bomb.pgm", 3000)


def test_a_large_photograph_is_no_bomb(tmp_path):
    Image.new("1", (12000, 8000), 1).save(tmp_path / "large.png")
    assert check_image(tmp_path / "large.png") == (8000, 12000)
    image = read_image(tmp_path / "large.png")
    assert image.shape == (3, 8000, 12000)
    assert image[:, -1, -1].tolist() == [255, 255, 255]


def photograph(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Waves of 100 to 400 pixels: smooth, and different in every corner."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    waves = [np.sin(x / 50) * np.cos(y / 65), np.sin((x + y) / 16), np.cos(x / 30) * np.sin(y / 20)]
    return Image.fromarray((127 + 90 * np.stack(waves, axis=-1)).astype(np.uint8)).convert(mode)


@pytest.mark.parametrize(
    ("at_least_px", "height", "width"), [(None, 899, 1203), (225, 899, 1203), (224, 450, 602), (112, 225, 301)]
)
@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_a_jpeg_is_reduced_where_twice_the_need_is_left(tmp_path, name, at_least_px, height, width):
    """1203x899: an eighth keeps 112 rows, a quarter 224 whole ones, a half 449."""
    photograph(1203, 899).save(tmp_path / name)
    image = read_image(tmp_path / name, at_least_px=at_least_px)
    assert image.shape == (3, *((height, width) if name == "a.jpg" else (899, 1203)))


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_reduced_picture_is_the_same_picture(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    photograph(1600, 1200).save(tmp_path / "a.jpg", quality=95, exif=exif)
    whole, half = (read_image(tmp_path / "a.jpg", at_least_px=n) for n in (None, 300))
    assert half.shape[1:] == (whole.shape[1] // 2, whole.shape[2] // 2)
    views = [resize(image, [192, 192], antialias=True).float() for image in (whole, half)]
    assert (views[0] - views[1]).abs().mean() < 0.3


@pytest.mark.parametrize("at_least_px", [None, 60, 30])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "keep L"])
@pytest.mark.parametrize("progressive", [False, True])
def test_simplejpeg_gives_pillows_pixels(tmp_path, monkeypatch, at_least_px, subsampling, progressive):
    pytest.importorskip("simplejpeg", reason="the extra `fast` is not installed")
    mode, options = ("L", {}) if subsampling == "keep L" else ("RGB", {"subsampling": subsampling})
    photograph(301, 277, mode).save(tmp_path / "a.jpg", progressive=progressive, quality=80, **options)
    fast = read_image(tmp_path / "a.jpg", at_least_px=at_least_px)
    monkeypatch.setattr(image_file, "simplejpeg", None)
    assert torch.equal(read_image(tmp_path / "a.jpg", at_least_px=at_least_px), fast)
