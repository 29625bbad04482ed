"""Two thousand mutated pictures, archives and lists: the reader may refuse, but never crashes, hangs or fills memory.

Run as a program it does the work and prints what came of it, so that a crash or a hang is seen from outside:
``python tests/data/test_fuzz.py 2000 0`` takes the number of cases and the seed.
"""

import bz2
import gzip
import io
import json
import lzma
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path

CASES = 2000
SECONDS = 30  # for one case
MEMORY = 1_000_000_000
EXTREMES = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def test_mutated_pictures_and_archives():
    done = subprocess.run(
        [sys.executable, __file__, str(CASES), "0"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["unexpected"] == []
    assert found["grown"] < MEMORY
    assert sum(found["outcomes"].values()) == CASES
    for kind in ("picture", "archive", "list"):  # mutations that spoil everything, or nothing, would test nothing
        assert found["outcomes"].get(f"{kind} read", 0) > 20, found
        assert found["outcomes"].get(f"{kind} refused", 0) > 20, found


def picture_seeds():
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (14, 18, 4), dtype=np.uint8)
    rgba = Image.fromarray(noise)
    rgb, grey = rgba.convert("RGB"), rgba.convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6

    def saved(picture, form, **options):
        buffer = io.BytesIO()
        picture.save(buffer, form, **options)
        return buffer.getvalue()

    frames = {"save_all": True, "append_images": [rgb.rotate(90), rgb.rotate(180)]}
    return [
        saved(rgb, "JPEG", exif=exif),
        saved(rgb, "JPEG", progressive=True),
        saved(rgb.convert("CMYK"), "JPEG"),
        saved(grey, "JPEG"),
        saved(rgb, "PNG", exif=exif),
        saved(rgba, "PNG"),
        saved(rgb.quantize(8), "PNG", transparency=3),
        saved(Image.fromarray(noise[..., 0].astype(np.uint16) * 257), "PNG"),
        saved(rgb, "PNG", **frames),
        saved(rgb, "WEBP"),
        saved(rgba, "WEBP", lossless=True, exif=exif),
        saved(rgb, "WEBP", **frames),
        saved(rgb, "BMP"),
        saved(rgb.quantize(8), "BMP"),
        saved(grey.convert("1"), "BMP"),
        saved(rgb, "TIFF"),
        saved(rgba, "TIFF", compression="tiff_lzw"),
        saved(grey, "TIFF", compression="tiff_adobe_deflate"),
        saved(grey.convert("F"), "TIFF"),
        saved(rgb, "TIFF", compression="jpeg"),
        saved(rgb, "GIF", **frames),
    ]


def archive_seeds(pictures):
    members = [
        (f"{part}/{name}/{n}.png", pictures[4 + n]) for part in ("train", "test") for name in "ab" for n in (0, 1)
    ]
    members.append((f"train/b/{'long' * 30}.jpg", pictures[0]))
    seeds = []
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", packing) as file:
            for name, content in members:
                file.writestr(name, content)
        seeds.append((".zip", buffer.getvalue()))
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as file:
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                info.pax_headers = {"comment": "x"} if form == tarfile.PAX_FORMAT else {}
                file.addfile(info, io.BytesIO(content))
        seeds.append((".tar", buffer.getvalue()))
    return seeds


def mutate(draw, data, others):
    data = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        kind = draw.choice(["flip", "flip", "lie", "lie", "cut", "splice", "repeat", "fill"])
        # Headers decide most, and they lie at the ends.
        place = draw.choice([draw.randrange(min(80, len(data) or 1)), draw.randrange(len(data) or 1), -1])
        place = max(0, len(data) - 1 - draw.randrange(80)) if place < 0 else place
        if kind == "flip":
            for _ in range(draw.choice([1, 4, 20])):
                spot = min(len(data) - 1, place + draw.randrange(40))
                if spot >= 0:
                    data[spot] ^= 1 << draw.randrange(8)
        elif kind == "lie":
            layout = draw.choice(["<I", ">I", "<H", ">H"])
            value = draw.choice(EXTREMES) & (0xFFFFFFFF if layout[1] == "I" else 0xFFFF)
            data[place : place + struct.calcsize(layout)] = struct.pack(layout, value)
        elif kind == "cut":
            del data[place : len(data) if draw.random() < 0.6 else place + draw.randrange(1, 50)]
        elif kind == "splice":
            other = draw.choice(others)
            start = draw.randrange(len(other))
            data[place:place] = other[start : start + draw.choice([4, 60, 1000])]
        elif kind == "repeat":
            data[place:place] = data[place : place + draw.choice([4, 60, 600])] * draw.choice([1, 3])
        else:
            data[place : place + draw.choice([4, 60])] = bytes([draw.choice([0, 255, 0x30, 0x2F])]) * 12
    return bytes(data)


def mend_png(data):
    """Give each chunk the checksum it should have, so that lies get past it."""
    result, place = bytearray(data), 8
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        if place + 12 + length > len(data):
            break
        crc = zlib.crc32(data[place + 4 : place + 8 + length])
        struct.pack_into(">I", result, place + 8 + length, crc)
        place += 12 + length
    return bytes(result)


def mend_tar(data):
    """Give each block that looks like a header the checksum it should have."""
    result = bytearray(data)
    for place in range(0, len(data) - 511, 512):
        if data[place + 257 : place + 262] == b"ustar":
            result[place + 148 : place + 156] = b" " * 8
            result[place + 148 : place + 156] = b"%06o\0 " % sum(result[place : place + 512])
    return bytes(result)


def pack(draw, suffix, data, mutated):
    """Return a tar as it is or packed, the damage being done before or after packing."""
    if suffix == ".zip":
        return suffix, mutated(data)
    before = draw.random() < 0.6
    data = mutated(data) if before else data
    data = mend_tar(data) if draw.random() < 0.6 else data
    kind = draw.choice([".tar", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz"])
    packed = {".tar": bytes, ".tar.gz": gzip.compress, ".tar.bz2": bz2.compress, ".tar.xz": lzma.compress}[kind](data)
    return kind, packed if before else mutated(packed)


def read_place(path, labelled, expected):
    from graphmsda.data.formats import open_listing

    try:
        listing = open_listing(path, labelled=labelled)
    except expected:
        return False
    listing.identity()
    assert all(name.encode() for name in listing.item_names)
    listing.sides(4)
    decoded = listing.read(range(len(listing)), 8)
    return len(decoded.kept) + len(decoded.failures) == len(listing)


def read_picture(data, expected):
    from graphmsda.data.images import decode, image_size, load_picture

    size = image_size(io.BytesIO(data))
    try:
        assert decode(io.BytesIO(data), 8).shape == (3, 8, 8)
        assert load_picture(io.BytesIO(data)).mode == "RGB"
    except expected:
        return False
    return size is not None


def main(count, seed):
    import faulthandler
    import resource

    from graphmsda.data import images
    from graphmsda.data.images import Unreadable, quiet_decoding
    from graphmsda.data.readers import archive, lists  # noqa: F401
    from graphmsda.errors import UserError

    images.THREADS = 2
    draw = random.Random(seed)
    pictures = picture_seeds()
    archives = archive_seeds(pictures)
    everything = [*pictures, *(data for _, data in archives)]
    outcomes, unexpected = Counter(), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder, quiet_decoding():
        place = Path(folder)
        for name in ("cat/1.png", "dog/2.png", "dog/a b.png"):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(pictures[4])
        comment = b"# where mutations do no harm\r\n" * 9
        text = comment + b"cat/1.png 0\ndog/2.png 1\n\ndog/a b.png\t1\ncat/1.png,0\n" + comment
        for number in range(count):
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            kind = draw.choices(["picture", "archive", "list"], [60, 33, 7])[0]
            data, path = b"", place / "none"
            try:
                if kind == "picture":
                    data = mutate(draw, draw.choice(pictures), everything)
                    data = mend_png(data) if draw.random() < 0.5 else data
                    fine = read_picture(data, Unreadable)
                else:
                    if kind == "archive":
                        suffix, data = draw.choice(archives)
                        suffix, data = pack(draw, suffix, data, lambda whole: mutate(draw, whole, everything))
                    else:
                        suffix, data = ".txt", mutate(draw, text, [text, "ñ \t,#\0\n../x.png -1".encode()])
                    path = place / f"{number}{suffix}"
                    path.write_bytes(data)
                    fine = read_place(path, draw.random() < 0.5, UserError)
                    path.unlink()
                outcomes[f"{kind} {'read' if fine else 'refused'}"] += 1
            except Exception as error:
                unexpected.append(f"case {number} ({kind}, {path.suffix}): {error!r}")
                Path(tempfile.gettempdir(), f"graphmsda-fuzz-{seed}-{number}{path.suffix}").write_bytes(data)
    faulthandler.cancel_dump_traceback_later()
    unit = 1 if sys.platform == "darwin" else 1024
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit
    print(json.dumps({"outcomes": outcomes, "unexpected": unexpected, "grown": grown}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
