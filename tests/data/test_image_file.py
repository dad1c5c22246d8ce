"""Decoding: the right way up, the right values, or an error that names the file."""

import io

import numpy as np
import pytest
from PIL import Image

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


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK"])
def test_other_modes_become_rgb(tmp_path, mode):
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new("RGB", (30, 20), (255, 255, 255)).convert(mode).save(tmp_path / f"a.{suffix}")
    image = read_image(tmp_path / f"a.{suffix}")
    assert image.shape == (3, 20, 30)
    assert image.min() >= 254


def test_a_palette_with_transparency(tmp_path):
    picture = Image.new("P", (30, 20), 1)
    picture.putpalette([0, 0, 0, 10, 200, 30] + [0] * 762)
    picture.save(tmp_path / "a.png", transparency=bytes([0, 128]))
    assert read_image(tmp_path / "a.png")[:, 0, 0].tolist() == [10, 200, 30]


def test_sixteen_bit_grey_keeps_its_ramp(tmp_path):
    ramp = np.arange(256, dtype=np.uint16)[None].repeat(4, axis=0) * 256
    Image.fromarray(ramp).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png")[1, 2].tolist() == list(range(256))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (jpeg_bytes()[: len(jpeg_bytes()) // 2], "truncated"),
        (b"", "cannot identify"),
        (b"<html><body>404</body></html>", "cannot identify"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify"),  # would start Ghostscript
        (None, "does not exist"),
        ("folder", "is a folder"),
    ],
)
@pytest.mark.parametrize("read", [read_image, check_image])
def test_what_is_no_picture(tmp_path, content, reason, read):
    path = tmp_path / "x.jpg"
    if content == "folder":
        path.mkdir()
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
        with pytest.raises(UserError, match=r"bomb\.png: 20000x10000 pixels are more than 150 megapixels"):
            read(tmp_path / "bomb.png")


def test_a_large_photograph_is_no_bomb(tmp_path):
    Image.new("1", (12000, 8000)).save(tmp_path / "large.png")
    assert check_image(tmp_path / "large.png") == (8000, 12000)
