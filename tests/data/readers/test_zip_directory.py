"""The quick reader of a zip file's table of contents says what Python's own says, or nothing."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from graphmsda.data.readers.zip_directory import UTF8, may_hold, read_directory
from graphmsda.data.readers.zips import _read_with_library
from graphmsda.errors import UserError

NAMES = ["a/1.png", "a/2.png", "café/ü.png", "b\\3.png", "../4.png", "a/", "notes.txt", "a/1.png"]


def pack(path: Path, names: list[str], comment: bytes = b"", **options: int) -> Path:
    with zipfile.ZipFile(path, "w", **options) as file:
        for number, name in enumerate(names):
            file.writestr(zipfile.ZipInfo(name), bytes(10 * number) + name.encode(), options.get("compression"))
        file.comment = comment
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("comment", [b"", b"of the archive", b"PK" * 30_000])
def test_it_is_as_the_library_has_it(tmp_path: Path, compression: int, comment: bytes) -> None:
    path = pack(tmp_path / "x.zip", NAMES, comment, compression=compression)
    found = read_directory(path)
    assert found is not None
    assert found == _read_with_library(path)
    assert [entry.name for entry in found] == NAMES


def test_an_empty_archive(tmp_path: Path) -> None:
    assert read_directory(pack(tmp_path / "x.zip", [])) == []


def test_names_in_other_encodings(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", ["aaa/1.png"])
    plain = path.read_bytes()
    for raw in (b"\x81\x82\x83", "é".encode() + b"x"):  # code page 437, and UTF-8 that does not say so
        path.write_bytes(plain.replace(b"aaa", raw))
        assert read_directory(path) == _read_with_library(path)
    entry = plain.index(b"PK\1\2")
    flagged = plain[: entry + 8] + struct.pack("<H", UTF8) + plain[entry + 10 :]
    path.write_bytes(flagged.replace(b"aaa", b"\x81\x82\x83"))
    assert read_directory(path) is None  # not the UTF-8 it claims to be: the library tells what is wrong
    with pytest.raises(UserError, match="cannot be read as a zip file"):
        _read_with_library(path)


def test_what_is_unusual_is_left_to_the_library(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", NAMES[:3])
    content = path.read_bytes()
    for changed in (
        b"#!/bin/sh\n" + content,
        content[:-1],
        content[:-30],
        content + b"x",
        b"",
        b"PK\5\6",
        content[40:],
    ):
        path.write_bytes(changed)
        assert read_directory(path) is None
        assert may_hold(path, "anything")
    counts = content.rindex(b"PK\5\6") + 8
    path.write_bytes(content[:counts] + b"\xff" * 4 + content[counts + 4 :])  # they are in a field of 64 bits
    assert read_directory(path) is None


def test_damage_is_never_read_otherwise_than_by_the_library(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", NAMES[:4], b"end")
    content = path.read_bytes()
    table = content.index(b"PK\1\2")
    random = np.random.default_rng(0)
    agreed = 0
    for place in range(table, len(content)):
        changed = bytearray(content)
        changed[place] = random.integers(256)
        path.write_bytes(changed)
        found = read_directory(path)
        if found is not None:
            try:
                assert found == _read_with_library(path), place
            except UserError:
                pytest.fail(f"byte {place}: read, though the library refuses it")
            agreed += 1
    assert agreed > 50


def test_a_name_is_looked_for(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.zip", ["a/1.png", "made.json"])
    assert may_hold(path, "made.json")
    assert not may_hold(path, "other.json")
    with pytest.raises(OSError, match="none"):
        may_hold(tmp_path / "none.zip", "a")
