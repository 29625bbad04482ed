"""Files are whole or not there, and what goes wrong with a disk is told in one sentence."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from graphmsda.errors import UserError
from graphmsda.files import _KINDS, create_text, read_tensors, replacing, write_tensors, write_text


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_text_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    write_text(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    write_text(path, "second")
    assert path.read_text() == "second"
    assert os.listdir(path.parent) == ["a.txt"]


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as beside:
            beside.write_text("half of the n")
            assert beside.parent == path.parent  # a rename within one file system
            assert path.read_text() == "old"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failure_leaves_no_new_file(tmp_path: Path) -> None:
    def stop() -> None:
        with replacing(tmp_path / "a.txt") as beside:
            beside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_told_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(2)})
    with largest_file(50_000), pytest.raises(UserError, match=r"a\.safetensors: no room left to write; free some") as e:
        write_tensors(path, {"x": torch.zeros(100_000)})
    assert "\n" not in str(e.value)
    assert read_tensors(path)[0]["x"].tolist() == [1, 1]
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "no room left"),
        (errno.EDQUOT, "no room left"),
        (errno.EFBIG, "no room left"),
        (errno.EACCES, "not allowed to write there; choose another --out"),
        (errno.EPERM, "not allowed to write there"),
        (errno.EROFS, "not allowed to write there"),
    ],
)
def test_errors_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: str) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match=told) as caught:
        write_text(tmp_path / "a.txt", "x")
    assert str(tmp_path / "a.txt") in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_forbidden_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match="not allowed to write"):
            write_text(tmp_path / "a.txt", "x")
    finally:
        tmp_path.chmod(0o700)


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.txt", tmp_path / "file" / "deep" / "a.txt"):
        with pytest.raises(UserError) as caught:
            write_text(path, "x")
        assert str(path) in str(caught.value)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="folder"):
        write_text(tmp_path / "folder", "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_other_errors_are_not_disguised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="odd") as caught, replacing(tmp_path / "a.txt"):
        raise OSError(errno.EIO, "odd")
    assert caught.value.errno == errno.EIO


def test_tensors_come_back_as_they_went(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.safetensors"
    tensors = {
        "float": torch.randn(2, 3),
        "turned": torch.randn(2, 3).T,
        "wide": torch.randn(2, dtype=torch.float64),
        "low": torch.randn(3).bfloat16(),
        "count": torch.tensor(7),
        "seen": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "learnt": torch.nn.Parameter(torch.ones(1)),
    }
    write_tensors(path, tensors, {"step": 3, "name": "größe"})
    read, about = read_tensors(path)
    assert about == {"step": 3, "name": "größe"}
    assert read.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert read[key].dtype == tensor.dtype
        assert torch.equal(read[key], tensor.detach()), key
    write_tensors(path, {})
    assert read_tensors(path) == ({}, {})


def test_tensors_are_written_as_others_read_them(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save

    tensors = {f"{kind}/{size}": torch.ones(size).to(kind) for kind in _KINDS for size in (0, 1, 3)}
    write_tensors(tmp_path / "a.safetensors", tensors)
    read = load_file(tmp_path / "a.safetensors")
    assert read.keys() == tensors.keys()
    assert all(read[name].dtype == tensor.dtype and torch.equal(read[name], tensor) for name, tensor in tensors.items())
    content = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % tensors[name].dtype.itemsize == 0
    assert len(content) - length == len(save(tensors)) - int.from_bytes(save(tensors)[:8], "little")


@pytest.mark.parametrize("damage", ["cut", "empty", "garbage", "missing", "header"])
def test_damaged_tensors_are_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(100)})
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        header = whole.replace(b'\\"', b"!").replace(b"{}", b"{[")
        path.write_bytes({"cut": whole[:-20], "empty": b"", "garbage": b"x" * 300, "header": header}[damage])
    with pytest.raises(UserError, match=r"a\.safetensors could not be read") as caught:
        read_tensors(path)
    assert "\n" not in str(caught.value)


def test_threads_write_the_same_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.txt") as one, replacing(tmp_path / "a.txt") as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "new" / "a.txt"
    assert create_text(path, "first")
    assert not create_text(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(path.parent) == ["a.txt"]


def test_a_name_that_is_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be written \(file name too long\); choose another --out"):
        write_text(tmp_path / f"{'x' * 300}.html", "text")
    write_text(tmp_path / f"{'x' * 250}.html", "text")  # what is written beside it has a short name
