import contextlib
import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from graphmsda.data import images
from graphmsda.data.images import Unreadable, decode, image_sizes, is_image_name


def gradient(width=40, height=24):
    """Red grows to the right, green downwards, blue is constant."""
    across, down = np.linspace(0, 255, width), np.linspace(0, 255, height)
    red, green = np.meshgrid(across, down)
    return np.stack([red, green, np.full_like(red, 60)], axis=-1).astype(np.uint8)


def save(path, array_or_image, **options):
    image = array_or_image if isinstance(array_or_image, Image.Image) else Image.fromarray(array_or_image)
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", sorted(images.SUFFIXES))
@pytest.mark.parametrize("upper", [False, True])
def test_every_format_gives_the_same_picture(tmp_path, suffix, upper):
    assert is_image_name("x" + (suffix.upper() if upper else suffix))
    path = save(tmp_path / f"x{suffix}", gradient())
    x = decode(path, 16)
    assert x.shape == (3, 16, 16)
    assert x.dtype == np.uint8
    assert x.flags.c_contiguous
    expected = decode(save(tmp_path / "reference.png", gradient()), 16)
    assert np.abs(x.astype(int) - expected).mean() < 4
    assert x[0, 8, 14] > x[0, 8, 2] + 100  # red to the right
    assert x[1, 14, 8] > x[1, 2, 8] + 100  # green downwards


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 77, (77, 77, 77)),
        ("LA", (77, 255), (77, 77, 77)),
        ("LA", (77, 0), (255, 255, 255)),
        ("P", 0, None),
        ("RGB", (10, 20, 30), (10, 20, 30)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("RGBA", (0, 0, 0, 128), (127, 127, 127)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", (77, 128, 128), (77, 77, 77)),
        ("I;16", 257 * 77, (77, 77, 77)),
        ("I", 257 * 77, (77, 77, 77)),
        ("F", 0.2, (51, 51, 51)),
        ("F", 77.0, (77, 77, 77)),
    ],
)
def test_every_mode(tmp_path, mode, value, expected):
    suffix = ".tif" if mode in ("CMYK", "YCbCr", "F", "I;16", "I", "LA") else ".png"
    if mode == "LA":
        suffix = ".png"
    path = save(tmp_path / f"x{suffix}", Image.new(mode, (9, 5), value))
    if mode == "YCbCr":
        try:
            Image.open(path).load()
        except OSError as error:  # some versions write this mode in a way that they cannot read
            pytest.skip(f"this Pillow cannot read what it wrote: {error}")
    x = decode(path, 4)
    assert x.shape == (3, 4, 4)
    if expected is not None:
        assert np.abs(x.reshape(3, -1).T.astype(int) - np.array(expected)).max() <= 1


def test_sixteen_bit_png(tmp_path):
    path = save(tmp_path / "x.png", np.full((6, 6), 257 * 200, dtype=np.uint16))
    assert (decode(path, 4) == 200).all()


def test_floats_outside_the_usual_ranges_are_stretched(tmp_path):
    values = np.linspace(-3, 1000, 64, dtype=np.float32).reshape(8, 8)
    x = decode(save(tmp_path / "x.tif", values), 8)
    assert x.min() == 0
    assert x.max() == 255


def test_floats_that_are_constant_or_not_finite_do_not_crash(tmp_path):
    values = np.full((8, 8), -5, dtype=np.float32)
    assert decode(save(tmp_path / "constant.tif", values), 8).shape == (3, 8, 8)
    values[0, 0], values[1, 1] = np.nan, np.inf
    assert decode(save(tmp_path / "nan.tif", values), 8).shape == (3, 8, 8)


def test_palette_with_transparency_is_shown_on_white(tmp_path):
    image = Image.new("P", (8, 8), 0)
    image.putpalette([200, 0, 0, 0, 0, 200])
    image.paste(1, (4, 0, 8, 8))
    x = decode(save(tmp_path / "x.png", image, transparency=0), 8)
    assert tuple(x[:, 4, 0]) == (255, 255, 255)
    assert tuple(x[:, 4, 7]) == (0, 0, 200)


def test_of_an_animation_the_first_frame_is_taken(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    path = tmp_path / "x.webp"
    frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True)
    assert tuple(decode(path, 4)[:, 2, 2]) == (255, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".webp"])
def test_exif_orientation_is_applied(tmp_path, orientation, suffix):
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    upright = Image.fromarray(gradient(32, 32))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright if undo is None else upright.transpose(undo)
    path = save(tmp_path / f"x{suffix}", stored, exif=exif, quality=95)
    assert np.abs(decode(path, 32).astype(int) - np.asarray(upright).transpose(2, 0, 1)).mean() < 4


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_matter(tmp_path):
    path = save(tmp_path / "x.jpg", gradient(), exif=b"Exif\x00\x00MM\x00\x2a\xff\xff\xff\xff")
    assert decode(path, 8).shape == (3, 8, 8)


def test_exif_reader_that_raises_does_not_matter(tmp_path, monkeypatch):
    def broken(self):
        raise SyntaxError("not a TIFF file")

    monkeypatch.setattr(Image.Image, "getexif", broken)
    assert decode(save(tmp_path / "x.bmp", gradient()), 8).shape == (3, 8, 8)


def test_resizing_is_antialiased(tmp_path):
    board = (np.indices((256, 256)).sum(axis=0) % 2 * 255).astype(np.uint8)
    x = decode(save(tmp_path / "x.png", board), 16)
    assert np.abs(x.astype(int) - 127).max() < 10


def test_large_jpeg_matches_careful_resizing(tmp_path):
    path = save(tmp_path / "x.jpg", gradient(1200, 900), quality=95)
    careful = np.asarray(Image.fromarray(gradient(1200, 900)).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(decode(path, 32).astype(int) - careful.transpose(2, 0, 1)).max() <= 6


def test_a_stream_is_read_like_a_file(tmp_path):
    path = save(tmp_path / "x.png", gradient())
    assert (decode(io.BytesIO(path.read_bytes()), 8) == decode(path, 8)).all()


def reason(file):
    with pytest.raises(Unreadable) as caught:
        decode(file, 8)
    return str(caught.value)


def test_reasons(tmp_path):
    empty = tmp_path / "empty.jpg"
    empty.touch()
    assert reason(empty) == "empty file"
    assert reason(io.BytesIO()) == "empty file"
    text = tmp_path / "text.png"
    text.write_text("not a picture at all")
    assert reason(text) == "not a picture or damaged"
    assert reason(tmp_path / "absent.png") == "file not found"


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp"])
def test_truncated(tmp_path, suffix):
    whole = save(tmp_path / f"x{suffix}", np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    half = tmp_path / f"half{suffix}"
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    assert reason(half) in ("truncated", "not a picture or damaged", "damaged (OSError)")


def test_truncated_jpeg_says_so(tmp_path):
    path = save(tmp_path / "x.jpg", gradient(200, 200))
    path.write_bytes(path.read_bytes()[:-400])
    assert reason(path) == "truncated"


def test_damaged_in_the_middle(tmp_path):
    content = bytearray(save(tmp_path / "x.png", gradient(200, 200)).read_bytes())
    content[44:-20] = bytes(len(content) - 64)
    path = tmp_path / "bad.png"
    path.write_bytes(content)
    assert reason(path)


def test_permission_denied(tmp_path, monkeypatch):
    def refuse(file, formats):
        raise PermissionError(13, "no")

    path = save(tmp_path / "x.png", gradient())
    monkeypatch.setattr(Image, "open", refuse)
    assert reason(path) == "permission denied"


def bomb(width, height):
    """A PNG of a few bytes that claims to be enormous."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_decompression_bomb(tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(60000, 60000))
    assert reason(path) == "too many pixels"


def test_files_too_large_to_take_in_are_not_opened(tmp_path):
    path = tmp_path / "x.webp"
    path.write_bytes(b"RIFF\xff\xff\xff\x7fWEBPVP8 ")
    os.truncate(path, images.MOST_BYTES + 1)  # takes no room on the disk
    assert reason(path) == "too large"
    assert image_sizes([path]) == []


def test_very_long_pictures_and_large_webp_are_refused(tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(1, images.MOST_SIDE + 1))
    assert reason(path) == "too many pixels"
    header = b"VP8X" + struct.pack("<II", 10, 0) + b"\xff\x1f\0" * 2  # 8,192 x 8,192 and its memory doubled
    (tmp_path / "x.webp").write_bytes(b"RIFF" + struct.pack("<I", 4 + len(header)) + b"WEBP" + header)
    assert reason(tmp_path / "x.webp")


def test_what_is_not_a_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")  # opening it would wait for ever
    assert reason(tmp_path / "pipe.png") == "not a file"
    (tmp_path / "folder.png").mkdir()
    assert reason(tmp_path / "folder.png") == "not a file"
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    assert reason(tmp_path / "loop.png") == "a link that leads in circles"


def test_formats_that_start_other_programs_are_refused(tmp_path):
    path = tmp_path / "x.png"
    Image.new("RGB", (8, 8)).save(path, format="EPS")
    assert reason(path) == "not a picture or damaged"


def test_a_gif_under_another_name_is_read(tmp_path):
    path = tmp_path / "x.jpg"
    Image.new("RGB", (8, 8), "red").save(path, format="GIF")
    assert tuple(decode(path, 4)[:, 0, 0]) == (255, 0, 0)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
@pytest.mark.parametrize("shape", [(130, 75), (37, 333), (100, 100)])
def test_conversion_piece_by_piece_changes_nothing(monkeypatch, mode, shape):
    noise = np.random.default_rng(0).integers(0, 256, (shape[1], shape[0], 4), dtype=np.uint8)
    picture = Image.fromarray(noise, "RGBA")
    if mode == "P":
        picture = picture.quantize(16)
    elif mode in ("I", "F", "I;16"):
        grey = noise[..., 0].astype({"I": np.int32, "F": np.float32, "I;16": np.uint16}[mode])
        picture = Image.fromarray(grey * 257 - (3 if mode != "I;16" else 0))
    else:
        picture = picture.convert("RGB").convert(mode) if mode in ("CMYK", "1") else picture.convert(mode)
    whole = images._to_rgb(picture)
    small = images._squeeze(picture, 7)
    monkeypatch.setattr(images, "_TILE", 32)
    assert np.array_equal(images._to_rgb(picture), whole)
    assert np.array_equal(images._squeeze(picture, 7), small)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_random_bytes_never_crash(tmp_path):
    random = np.random.default_rng(0)
    whole = save(tmp_path / "x.png", gradient()).read_bytes(), save(tmp_path / "x.tif", gradient()).read_bytes()
    for number in range(200):
        content = np.frombuffer(whole[number % 2], dtype=np.uint8).copy()
        content[random.integers(0, len(content), 5)] = random.integers(0, 256, 5)
        with contextlib.suppress(Unreadable):
            assert decode(io.BytesIO(content.tobytes()), 8).shape == (3, 8, 8)


def test_image_sizes_reads_headers_and_passes_over_what_is_illegible(tmp_path):
    first = save(tmp_path / "a.png", gradient(40, 24))
    broken = tmp_path / "b.png"
    broken.write_bytes(b"nothing")
    half = save(tmp_path / "c.png", gradient(30, 50))
    half.write_bytes(half.read_bytes()[:50])
    assert image_sizes([first, broken, half]) == [(40, 24), (30, 50)]
