import io
import multiprocessing
import os
import pickle
import struct
import tarfile
import unicodedata
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from graphmsda.data.formats import open_listing
from graphmsda.data.readers import archive as archives
from graphmsda.data.readers import tars
from graphmsda.data.readers.archive import ArchiveListing, open_archive
from graphmsda.errors import UserError

KINDS = [".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"]


def png(value=128, size=(6, 6)):
    buffer = io.BytesIO()
    Image.new("L", size, value).save(buffer, "PNG")
    return buffer.getvalue()


def pack(path, members, **options):
    """Write an archive of the given names and bytes, in that order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", **({"compression": zipfile.ZIP_DEFLATED} | options)) as file:
            for name, content in members.items():
                file.writestr(name, content)
        return path
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def tree(count=12):
    folders = [f"{part}/{digit}" for part in ("train", "test") for digit in (3, 1)]
    names = [f"{folder}/{number}.png" for folder in folders for number in range(count)]
    return {name: png(number) for number, name in enumerate(names)}


def unpack(members, folder):
    for name, content in members.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def error(path, **options):
    with pytest.raises(UserError) as caught:
        open_listing(path, **({"labelled": True} | options))
    return str(caught.value)


def values(listing, indices=None):
    decoded = listing.read(range(len(listing)) if indices is None else indices, 4)
    assert decoded.failures == []
    return decoded.x[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_reads_like_the_folder(tmp_path, kind):
    members = tree()
    folder = open_listing(unpack(members, tmp_path / "digits"), labelled=True)
    listing = open_listing(pack(tmp_path / f"digits{kind}", members), labelled=True)
    assert isinstance(listing, ArchiveListing)
    assert listing.name == "digits"
    expected = dict(zip(folder.item_names, zip(folder.labels, folder.parts, values(folder), strict=True), strict=True))
    found = dict(zip(listing.item_names, zip(listing.labels, listing.parts, values(listing), strict=True), strict=True))
    assert {name.replace(f"digits{kind}", "digits"): row for name, row in found.items()} == expected
    if kind == ".zip":
        assert [name.replace(".zip", "") for name in listing.item_names] == folder.item_names
    else:
        assert [name.partition(f"digits{kind}/")[2] for name in listing.item_names] == list(members)


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_repetition_and_part(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(archives, "READ_AHEAD", 300)  # a few pictures at a time
    listing = open_listing(pack(tmp_path / f"x{kind}", tree()), labelled=True, part="test")
    everything = values(listing)
    order = np.random.default_rng(0).integers(0, len(listing), 50).tolist()
    assert values(listing, order) == [everything[row] for row in order]
    assert values(listing, []) == []
    assert listing.picture(3).size == (6, 6)
    assert listing.sides(5) == [6] * len(listing.sides(5))


@pytest.mark.parametrize("kind", KINDS)
def test_without_labels_any_arrangement_is_read(tmp_path, kind):
    listing = open_listing(pack(tmp_path / f"x{kind}", {"1.png": png(), "a/2.png": png()}), labelled=False)
    assert (len(listing), listing.labels, listing.parts) == (2, None, None)
    parted = open_listing(pack(tmp_path / f"y{kind}", tree()), labelled=False, part="train")
    assert len(parted) == 24


@pytest.mark.parametrize(
    ("names", "labels", "parts"),
    [
        (["mnist/train/3/1.png", "mnist/test/4/1.png"], {"3", "4"}, {"train", "test"}),
        (["photo/dog/1.png", "photo/cat/1.png"], {"dog", "cat"}, None),
        (["amazon/images/bike/1.png", "amazon/images/mug/1.png"], {"bike", "mug"}, None),
        (["images/bike/1.png", "images/mug/1.png"], {"bike", "mug"}, None),
        (["./train/bike/1.png", "./train/mug/1.png"], {"bike", "mug"}, {"train"}),
        (["train\\bike\\1.png", "train\\mug\\1.png"], {"bike", "mug"}, {"train"}),
        (["dog/1.png", "dog/2.png"], {"dog"}, None),
        (["dog/1.png", "cat/kittens/2.png"], {"dog", "cat"}, None),
        (["a/b/c/dog/1.png", "a/b/c/cat/1.png"], {"dog", "cat"}, None),
    ],
)
def test_layouts(tmp_path, names, labels, parts):
    for kind in (".zip", ".tar"):
        listing = open_listing(pack(tmp_path / f"x{kind}", {name: png() for name in names}), labelled=True)
        assert set(listing.labels) == labels
        assert (listing.parts and set(listing.parts)) == parts


@pytest.mark.parametrize("kind", [".zip", ".tar.gz"])
def test_litter_is_passed_over(tmp_path, kind):
    members = {
        "a/1.png": png(), "b/1.png": png(), "__MACOSX/a/._1.png": b"x", "a/._1.png": b"x", ".hidden/1.png": b"x",
        "a/Thumbs.db": b"x", "notes.txt": b"x", "inner.zip": b"PK", "a/": b"", "a/folder.png/": b"",
    }  # fmt: skip
    assert open_listing(pack(tmp_path / f"x{kind}", members), labelled=True).labels == ("a", "b")


def test_links_devices_and_sparse_members_of_a_tar_are_passed_over(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as file:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)):
            info = tarfile.TarInfo(f"a/{number}.png")
            info.type, info.linkname = kind, "/etc/passwd"
            file.addfile(info)
        info = tarfile.TarInfo("a/real.png")
        info.size = len(png())
        file.addfile(info, io.BytesIO(png()))
    assert open_listing(tmp_path / "x.tar", labelled=True).item_names == [f"{tmp_path}/x.tar/a/real.png"]


def test_errors_of_layout_are_those_of_folders(tmp_path):
    assert "x.zip: its 2 images lie directly in it" in error(pack(tmp_path / "x.zip", {"1.png": png(), "2.png": png()}))
    assert "x.zip/0.png lies beside" in error(pack(tmp_path / "x.zip", {"0.png": png(), "a/2.png": png()}))
    for labelled in (True, False):
        assert "x.tar: no images in it" in error(pack(tmp_path / "x.tar", {"a.txt": b""}), labelled=labelled)
    assert "a folder; give a .zip" in error(tmp_path, format="archive")


def test_names_in_any_unicode(tmp_path):
    composed, apart = (unicodedata.normalize(form, "señor") for form in ("NFC", "NFD"))
    for kind in (".zip", ".tar"):
        members = {f"{apart}/ß 猫 🐈.png": png(3), "кот/1.png": png(4)}
        listing = open_listing(pack(tmp_path / f"x{kind}", members), labelled=True)
        assert set(listing.labels) == {composed, "кот"}
        assert sorted(values(listing)) == [3, 4]
        assert any("ß 猫 🐈.png" in name for name in listing.item_names)


def test_utf8_names_that_do_not_say_so_and_names_that_are_no_text(tmp_path):
    path = pack(tmp_path / "x.zip", {"café/1.png": png(), "b/1.png": png()})
    content = path.read_bytes()
    for signature, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # take the mark away
        start = content.index(signature) + place
        content = content[:start] + b"\0\0" + content[start + 2 :]
    path.write_bytes(content)
    assert set(open_listing(path, labelled=True).labels) == {"café", "b"}
    info = tarfile.TarInfo("\udcff/1.png")
    info.size = len(png())
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as file:
        file.addfile(info, io.BytesIO(png()))
    listing = open_listing(tmp_path / "x.tar", labelled=True)
    listing.item_names[0].encode("utf-8")
    listing.identity()
    assert values(listing) == [128]


@pytest.mark.parametrize("kind", KINDS)
def test_of_several_members_of_a_name_the_last_counts(tmp_path, kind):
    path = pack(tmp_path / f"x{kind}", {"a/1.png": png(1), "b/1.png": png(2), "a/2.png": png(3)})
    if kind in (".zip", ".tar"):
        with zipfile.ZipFile(path, "a") if kind == ".zip" else tarfile.open(path, "a") as file:
            if kind == ".zip":
                with pytest.warns(UserWarning, match="Duplicate"):
                    file.writestr("a/1.png", png(9))
            else:
                info = tarfile.TarInfo("a/1.png")
                info.size = len(png(9))
                file.addfile(info, io.BytesIO(png(9)))
        listing = open_listing(path, labelled=True)
        assert sorted(values(listing)) == [2, 3, 9]
        assert "1 of its images are replaced by later ones" in listing.notes[0]


@pytest.mark.parametrize("kind", KINDS)
def test_identity(tmp_path, kind):
    path = pack(tmp_path / f"x{kind}", {"a/1.png": png(1), "b/1.png": png(2)})
    labelled = open_listing(path, labelled=True).identity()
    assert open_listing(path, labelled=False).identity() == labelled
    changed = pack(tmp_path / f"x{kind}", {"a/1.png": png(1), "b/1.png": png(3)})
    os.utime(changed, ns=(1, 1))
    assert open_listing(path, labelled=True).identity() != labelled


def test_the_identity_of_a_zip_is_its_content(tmp_path):
    members = {"a/1.png": png(1), "b/1.png": png(2)}
    first = open_listing(pack(tmp_path / "x.zip", members), labelled=True).identity()
    stored = pack(tmp_path / "y.zip", members, compression=zipfile.ZIP_STORED)
    assert open_listing(stored, labelled=True).identity() == first


@pytest.mark.parametrize("kind", KINDS)
def test_threads_forks_and_pickles(tmp_path, kind):
    listing = open_listing(pack(tmp_path / f"x{kind}", tree(20)), labelled=True)
    expected = values(listing)

    def first_pixel(row):
        return listing.picture(row).getpixel((0, 0))[0]

    rows = np.random.default_rng(0).integers(0, len(listing), 60).tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(first_pixel, rows)) == [expected[row] for row in rows]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        halves = pool.map(listing_values, [(listing, range(40)), (listing, range(40, 80))])
    assert halves[0] + halves[1] == expected
    assert values(pickle.loads(pickle.dumps(listing))) == expected


def listing_values(job):
    return values(*job)


def test_a_fork_uses_an_open_archive_beside_its_parent(tmp_path):
    listing = open_listing(pack(tmp_path / "x.tar.gz", tree(20)), labelled=True)
    expected = values(listing)
    listing.picture(30)  # the place in the stream is in the middle
    child = os.fork()
    if child == 0:
        os._exit(0 if values(listing) == expected else 1)
    assert values(listing) == expected
    assert os.waitpid(child, 0)[1] == 0


def test_going_through_a_packed_tar_opens_it_once(tmp_path, monkeypatch):
    opened = []
    stream = tars.Stream

    def counted(*arguments):
        opened.append(arguments)
        return stream(*arguments)

    listing = open_listing(pack(tmp_path / "x.tar.gz", tree(40)), labelled=True)
    monkeypatch.setattr(tars, "Stream", counted)
    for start in range(0, len(listing), 16):
        values(listing, range(start, min(start + 16, len(listing)))[::-1])
    assert len(opened) == 1
    values(listing, [0])
    assert len(opened) == 2


def test_an_open_zip_or_tar_survives_its_replacement(tmp_path):
    for kind in (".zip", ".tar"):
        listing = open_listing(pack(tmp_path / f"x{kind}", tree(3)), labelled=True)
        expected = values(listing)
        os.replace(pack(tmp_path / f"new{kind}", {"a/1.png": png(1)}), tmp_path / f"x{kind}")
        assert values(listing) == expected
    listing = open_listing(pack(tmp_path / "x.tar.gz", tree(3)), labelled=True)
    os.replace(pack(tmp_path / "new.tar.gz", {"a/1.png": png(1)}), tmp_path / "x.tar.gz")
    assert listing.read([0], 4).failures == [(0, "the archive has changed since it was listed")]


def test_systems_that_cannot_read_at_a_position(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "pread")
    for kind in (".zip", ".tar"):
        assert values(open_listing(pack(tmp_path / f"x{kind}", {"a/1.png": png(5)}), labelled=True)) == [5]


def test_long_names(tmp_path):
    name = "class/" + "x" * 90 + "/" + "y" * 200 + ".png"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo(name)
        info.size = len(png())
        with tarfile.open(tmp_path / "x.tar", "w", format=form) as file:
            file.addfile(info, io.BytesIO(png()))
        listing = open_archive(tmp_path / "x.tar", labelled=False)
        assert listing.members[0].name == name
        assert values(listing) == [128]


def test_a_zip_behind_a_program_and_with_64_bit_fields(tmp_path):
    path = pack(tmp_path / "x.zip", {"a/1.png": png(5)})
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert values(open_listing(path, labelled=True)) == [5]
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as file, file.open("a/1.png", "w", force_zip64=True) as member:
        member.write(png(6))
    assert values(open_listing(tmp_path / "y.zip", labelled=True)) == [6]


def test_many_members_take_little_time_and_no_handles(tmp_path):
    path = pack(tmp_path / "x.zip", {f"{number % 7}/{number}.png": b"" for number in range(1000)})
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    listings = [open_listing(path, labelled=True) for _ in range(5)]
    assert {len(listing) for listing in listings} == {1000}
    del listings
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)


def test_header_of_a_member_is_looked_at(tmp_path):
    path = pack(tmp_path / "x.zip", {"a/1.png": png(5), "b/2.png": png(6)})
    content = bytearray(path.read_bytes())
    struct.pack_into("<4s", content, content.index(b"PK\3\4"), b"junk")
    path.write_bytes(content)
    decoded = open_listing(path, labelled=True).read([0, 1], 4)
    assert decoded.kept == [1]
    assert decoded.failures == [(0, "damaged (no header)")]


def test_the_shared_digits_and_pictures():
    place = os.environ.get("GRAPHMSDA_DATA")
    if not place or not (Path(place) / "digits-five/usps.zip").exists():
        pytest.skip("GRAPHMSDA_DATA does not lead to digits-five/usps.zip")
    usps = open_listing(Path(place) / "digits-five/usps.zip", labelled=True)
    assert [usps.parts.count(part) for part in ("train", "test")] == [7291, 2007]
    assert sorted(set(usps.labels)) == list("0123456789")
    assert usps.read(range(0, len(usps), 100), 16).failures == []
    photo = open_listing(Path(place) / "pacs/photo.zip", labelled=True)
    assert (len(photo), len(set(photo.labels)), photo.parts) == (1670, 7, None)
