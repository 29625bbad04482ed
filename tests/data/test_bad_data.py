"""Bad data in folders, archives, lists and pictures: each refused or skipped with one sentence, nothing else lost."""

import io
import os
import resource
import struct
import sys
import tarfile
import traceback
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from graphmsda.data import images
from graphmsda.data.budget import Budget
from graphmsda.data.formats import open_listing
from graphmsda.data.readers import tars
from graphmsda.errors import UserError


def png(value=128):
    buffer = io.BytesIO()
    Image.new("L", (6, 6), value).save(buffer, "PNG")
    return buffer.getvalue()


def write_zip(path, members, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def refusal(path, **options):
    """The one sentence with which a place is refused, whether or not labels are wanted."""
    messages = []
    for labelled in (True, False):
        with pytest.raises(UserError) as caught:
            open_listing(path, labelled=labelled, **options)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith(f"{path}: ")
    assert "\n" not in messages[0]
    return messages[0]


def outcome(path, count=2):
    """Values of what was read, and reasons for what was not."""
    decoded = open_listing(path, labelled=False).read(range(count), 4)
    return decoded.x[:, 0, 0, 0].tolist(), [reason for _, reason in decoded.failures]


UNSAFE = ["/etc/1.png", "../1.png", "a/../../1.png", "C:\\1.png", "c:1.png", "a\\..\\..\\1.png", "\\\\host\\x\\1.png"]


@pytest.mark.parametrize("name", [*UNSAFE, "../notes.txt", "/folder/"])
@pytest.mark.parametrize("kind", [".zip", ".tar", ".tar.gz"])
def test_an_archive_whose_members_lead_elsewhere(tmp_path, name, kind):
    members = [("a/1.png", png()), (name, b"" if name.endswith("/") else png())]
    path = tmp_path / f"x{kind}"
    if kind == ".zip":
        write_zip(path, members)
    else:
        write_tar(path, members, "w:gz" if kind == ".tar.gz" else "w")
    message = refusal(path)
    assert repr(name.rstrip("/"))[1:-1] in message
    assert "leads outside the archive" in message


def test_names_that_only_look_unsafe(tmp_path):
    names = ["a/..1.png", "a/1..png", "a...b/1.png", "note: x/1.png"]
    listing = open_listing(write_zip(tmp_path / "x.zip", [(name, png()) for name in names]), labelled=True)
    assert set(listing.labels) == {"a", "a...b", "note: x"}


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("graphmsda.data.readers.zips.MOST_BYTES", 100_000)
    members = [("a/1.png", png(1)), ("a/2.png", bytes(10_000_000))]
    path = write_zip(tmp_path / "x.zip", members, compression=zipfile.ZIP_DEFLATED)
    assert outcome(path) == ([1], ["too large"])


@pytest.mark.parametrize("claim", [0, 1, 50, 99_999_999])
def test_a_zip_that_lies_about_sizes(tmp_path, claim):
    content = zlib.compress(bytes(100_000_000), 9)[2:-4]
    path = write_zip(tmp_path / "x.zip", [("a/1.png", png(1)), ("a/2.png", content)])
    data = bytearray(path.read_bytes())
    for signature, start in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        place = data.rindex(signature) + start
        struct.pack_into("<H", data, place, zipfile.ZIP_DEFLATED)  # what was stored is now taken for packed
        struct.pack_into("<I", data, place + 14, claim)
    path.write_bytes(data)

    def read():
        decoded = open_listing(path, labelled=False).read([0, 1], 4)
        assert decoded.kept == [0]
        assert decoded.failures[0][1].startswith("damaged"), decoded.failures

    assert grown(read) < 2.5 * claim + 30e6


def test_a_zip_whose_members_share_bytes(tmp_path):
    path = write_zip(tmp_path / "x.zip", [("a/1.png", png(1)), ("a/2.png", png(2))])
    data = bytearray(path.read_bytes())
    second = data.rindex(b"PK\1\2")
    struct.pack_into("<I", data, second + 42, 0)  # begins where the first does
    path.write_bytes(data)
    assert "share the same bytes" in refusal(path)


def test_an_encrypted_zip_and_an_encrypted_member(tmp_path):
    path = write_zip(tmp_path / "x.zip", [("a/1.png", png(1)), ("a/2.png", png(2))])
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\1\2") + 8
    data[place] |= 1
    path.write_bytes(data)
    assert outcome(path) == ([1], ["encrypted"])
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    assert "none of its 2 images can be read (a/1.png: encrypted); unpack it" in refusal(path)


def test_unsupported_packing(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/1.png", png(1))
        file.writestr("a/2.png", png(2), compress_type=zipfile.ZIP_LZMA)
    assert outcome(path) == ([1], ["packed by a method that is not supported"])


def test_a_damaged_member_of_a_zip(tmp_path):
    path = write_zip(tmp_path / "x.zip", [("a/1.png", png(1)), ("a/2.png", png(2))])
    data = bytearray(path.read_bytes())
    data[data.index(png(2)) + 20] ^= 255
    path.write_bytes(data)
    assert outcome(path) == ([1], ["damaged (wrong checksum)"])


@pytest.mark.parametrize("kind", [".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.8])
def test_a_truncated_archive(tmp_path, kind, share):
    noise = np.random.default_rng(0).bytes(20_000)
    members = [("a/1.png", png(1)), ("a/2.png", noise), ("b/3.png", noise)]
    path = tmp_path / f"x{kind}"
    write_zip(path, members) if kind == ".zip" else write_tar(path, members, f"w:{kind[5:]}")
    os.truncate(path, int(share * os.path.getsize(path)))
    message = refusal(path)
    assert "perhaps it is truncated or damaged" in message
    assert "fetch or make it anew" in message


@pytest.mark.parametrize("kind", [".zip", ".tar", ".tar.gz"])
def test_what_is_no_archive(tmp_path, kind):
    path = tmp_path / f"x{kind}"
    path.write_text("<html>404</html>" * 100)
    assert "cannot be read as a" in refusal(path)


def test_damage_in_the_middle_of_a_tar_does_not_pass_for_its_end(tmp_path):
    path = write_tar(tmp_path / "x.tar", [(f"a/{number}.png", png(number)) for number in range(4)])
    data = bytearray(path.read_bytes())
    place = data.index(b"a/2.png")
    data[place : place + 512] = b"x" * 512
    path.write_bytes(data)
    assert "damaged" in refusal(path)


def test_a_tar_that_points_back_ends(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as file:
        info = tarfile.TarInfo("a/1.png")
        info.pax_headers = {"size": "-2048"}
        file.addfile(info)
    assert "damaged" in refusal(tmp_path / "x.tar")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_packed_tar_bomb_is_given_up(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(tars, "SUSPICIOUS", 1 << 22)
    path = write_tar(tmp_path / f"x.tar.{kind}", [("a/1.png", png()), ("a/2.png", bytes(1 << 24))], f"w:{kind}")
    assert "unpacks to more than 200 times its size" in refusal(path)


def test_a_large_member_of_a_packed_tar_is_passed(tmp_path, monkeypatch):
    monkeypatch.setattr(tars, "MOST_BYTES", 1000)
    members = [("a/1.png", png(1)), ("a/2.png", np.random.default_rng(0).bytes(5000)), ("a/3.png", png(3))]
    assert outcome(write_tar(tmp_path / "x.tgz", members, "w:gz"), 3) == ([1, 3], ["too large"])


def test_a_packed_tar_with_an_endless_header_is_given_up(tmp_path):
    info = tarfile.TarInfo("name")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as file:
        file.fileobj.write(info.tobuf(tarfile.GNU_FORMAT))
        file.fileobj.write(bytes(1 << 23))
    assert "a header is too large" in refusal(tmp_path / "x.tgz")


def grown(work):
    """Do `work` in a process of its own, a fork; return by how many bytes its memory grew at most."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "failed"
        try:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            work()
            answer = str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        except BaseException:
            answer = traceback.format_exc()
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    assert answer.isdigit(), answer
    return int(answer) * (1 if sys.platform == "darwin" else 1024)


def test_the_measure_measures():
    assert grown(lambda: None) < 20e6
    assert grown(lambda: np.ones(100_000_000, dtype=np.uint8)) > 90e6


@pytest.mark.parametrize(("mode", "suffix"), [("RGBA", ".png"), ("I;16", ".png"), ("F", ".tif"), ("RGB", ".webp")])
def test_memory_for_a_large_picture_is_bounded(tmp_path, mode, suffix):
    side = 3000
    options = {".png": {"compress_level": 1}, ".tif": {"compression": "tiff_lzw"}, ".webp": {"method": 0}}[suffix]
    Image.new(mode, (side, side)).save(tmp_path / f"x{suffix}", **options)

    def read():
        assert images.decode(tmp_path / f"x{suffix}", 224).shape == (3, 224, 224)

    assert grown(read) < side * side * (17 if suffix == ".webp" else 9) + 30e6


def test_many_threads_share_the_memory_for_large_pictures(tmp_path, monkeypatch):
    side = 3000
    for number in range(6):
        Image.new("RGB", (side, side), (number,) * 3).save(tmp_path / f"{number}.png", compress_level=1)
    monkeypatch.setattr(images, "_MEMORY", Budget(8 * side * side))
    monkeypatch.setattr(images, "THREADS", 6)

    def read():
        listing = open_listing(tmp_path, labelled=False)
        assert listing.read(range(6), 32).x[:, 0, 0, 0].tolist() == list(range(6))

    assert grown(read) < 2 * 4 * side * side + 30e6  # six at once would take six times 4 bytes for each pixel


def test_a_decompression_bomb_among_pictures(tmp_path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(bytes(1_000_000)))
    bomb = b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b"")
    (tmp_path / "1.png").write_bytes(bomb)
    (tmp_path / "2.png").write_bytes(png(2))
    assert outcome(tmp_path) == ([2], ["too many pixels"])
    assert outcome(write_zip(tmp_path / "x.zip", [("1.png", bomb), ("2.png", png(2))])) == ([2], ["too many pixels"])


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tgz"])
def test_unusual_pictures_are_converted_wherever_they_lie(tmp_path, kind):
    def saved(picture, form, **options):
        buffer = io.BytesIO()
        picture.save(buffer, form, **options)
        return buffer.getvalue()

    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 200, 200, 200])
    frames = [Image.new("RGB", (8, 8), (200,) * 3), Image.new("RGB", (8, 8), "blue")]
    members = {
        "a/16-bit.png": saved(Image.fromarray(np.full((8, 8), 257 * 200, dtype=np.uint16)), "PNG"),
        "a/16-bit-big-endian.tif": saved(Image.new("I;16B", (8, 8), 257 * 200), "TIFF"),
        "a/animated.png": saved(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        "a/animated.webp": saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True),
        "a/cmyk.jpg": saved(Image.new("CMYK", (8, 8), (55, 55, 55, 0)), "JPEG", quality=98),
        "a/grey.jpg": saved(Image.new("L", (8, 8), 200), "JPEG"),
        "a/palette.png": saved(palette, "PNG"),
        "a/zero.png": b"",
        "a/猫 ñ \u200f.png": saved(Image.new("L", (8, 8), 200), "PNG"),
    }
    if kind == "folder":
        path = tmp_path / "x"
        (path / "a").mkdir(parents=True)
        for name, content in members.items():
            (path / name).write_bytes(content)
    elif kind == "zip":
        path = write_zip(tmp_path / "x.zip", members.items())
    else:
        path = write_tar(tmp_path / f"x.{kind}", members.items(), "w:gz" if kind == "tgz" else "w")
    read, failures = outcome(path, len(members))
    assert failures == ["empty file"]
    assert len(read) == len(members) - 1
    assert all(abs(value - 200) <= 2 for value in read), read


def test_a_list_that_names_what_is_not_there(tmp_path):
    (tmp_path / "1.png").write_bytes(png())
    path = tmp_path / "x.txt"
    path.write_text("1.png 0\n" + "".join(f"gone/{number}.png 1\n" for number in range(7)))
    message = refusal(path)
    assert "7 of the 8 images it names are not below" in message
    assert "(first: gone/0.png, gone/1.png, gone/2.png, gone/3.png, gone/4.png)" in message


def test_a_list_that_names_a_pipe_or_a_folder_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "ok.png").write_bytes(png(7))
    (tmp_path / "x.txt").write_text("pipe.png 0\nfolder.png 1\nok.png 1\n")
    assert outcome(tmp_path / "x.txt", 3) == ([7], ["not a file", "not a file"])


def test_link_loops(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.png").write_bytes(png(1))
    (tmp_path / "a/again").symlink_to(tmp_path / "a")
    (tmp_path / "a/top").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "c")
    (tmp_path / "c").symlink_to(tmp_path / "b")
    (tmp_path / "x.png").symlink_to(tmp_path / "x.png")
    assert outcome(tmp_path) == ([1], ["a link that leads in circles"])


def test_a_picture_of_many_bytes_inside_an_archive_is_not_taken_in(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MOST_BYTES", 1000)
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(content, "PNG")
    assert outcome(write_zip(tmp_path / "x.zip", [("1.png", content.getvalue()), ("2.png", png(2))])) == (
        [2],
        ["too large"],
    )
