"""The cache of decoded pictures: right, shared, and safe against kills, full disks and other versions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from graphmsda import forked
from graphmsda.data import decoding, store
from graphmsda.data.cache import cache_page, clear, entries
from graphmsda.data.encoded import Encoded
from graphmsda.data.formats import open_listing
from graphmsda.data.listing import take
from graphmsda.data.store import ABOUT, OFFSETS, SAMPLES, cache_folder, open_store
from graphmsda.errors import UserError


def pictures(root: Path, count: int = 6, side: int = 20, seed: int = 0) -> Path:
    """Two classes of noise pictures."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        folder = root / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        noise = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number:04}.png")
    return root


def listing(root: Path):
    return open_listing(root, labelled=False)


def test_rows_are_what_the_listing_reads(tmp_path):
    found = listing(pictures(tmp_path / "a"))
    stored = open_store(found, 32, cache=tmp_path / "cache")
    assert torch.equal(stored.x, found.read(range(6), 32).x)
    assert stored.kept == list(range(6))
    assert stored.failures == stored.notes == []
    assert sorted(file.name for file in entries(tmp_path / "cache")[0].path.iterdir()) == [ABOUT, SAMPLES]


def test_raw_pictures_are_mapped_and_the_file_cannot_be_changed_through_them(tmp_path):
    found = listing(pictures(tmp_path / "a"))
    before = open_store(found, 32, cache=tmp_path / "cache").x.clone()
    first = open_store(found, 32, cache=tmp_path / "cache")
    first.x.zero_()
    assert torch.equal(open_store(found, 32, cache=tmp_path / "cache").x, before)


def test_what_is_large_is_kept_compressed(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGEST_RAW", 20 * 3 * 96 * 96 - 1)
    root = tmp_path / "a"
    root.mkdir()
    ramp = np.linspace(0, 255, 120).astype(np.uint8)
    smooth = np.stack([np.tile(ramp, (120, 1)), np.tile(ramp[:, None], (1, 120)), np.full((120, 120), 90)], 2)
    for number in range(20):
        Image.fromarray(np.roll(smooth, 3 * number, 1).astype(np.uint8)).save(root / f"{number:02}.png")
    found = listing(root)
    stored = open_store(found, 96, cache=tmp_path / "cache")
    assert isinstance(stored.x, Encoded)
    assert tuple(stored.x.shape) == (20, 3, 96, 96)
    assert len(stored.x) == 20
    exact = found.read(range(20), 96).x
    assert (stored.x[:].float() - exact.float()).abs().mean() < 2
    rows = torch.tensor([7, 7, 0, 19])
    assert torch.equal(stored.x[rows], stored.x[:][rows])
    assert torch.equal(stored.x[3:17], stored.x[:][3:17])
    assert stored.x[5:5].shape == (0, 3, 96, 96)
    path = entries(tmp_path / "cache")[0].path
    assert (path / SAMPLES).stat().st_size < exact.numel() / 4
    assert (path / OFFSETS).is_file()
    monkeypatch.setattr(store, "LARGEST_RAW", 20 * 3 * 96 * 96)
    assert torch.equal(open_store(found, 96, cache=tmp_path / "cache").x, exact)


def test_no_labels_are_kept(tmp_path):
    root = pictures(tmp_path / "a")
    name = open_store(open_listing(root, labelled=True), 32, cache=tmp_path / "cache")
    assert name.kept == list(range(6))
    (entry,) = entries(tmp_path / "cache")
    assert not any(word in (entry.path / ABOUT).read_text() for word in ("cat", "dog"))
    open_store(listing(root), 32, cache=tmp_path / "cache")  # without labels it is the same entry
    assert len(entries(tmp_path / "cache")) == 1


def test_an_entry_serves_later_runs_without_decoding(tmp_path, monkeypatch):
    found = listing(pictures(tmp_path / "a"))
    before = open_store(found, 32, cache=tmp_path / "cache")
    monkeypatch.setattr(store, "decode_in_order", lambda *_: pytest.fail("decoded again"))
    seen = []
    after = open_store(listing(tmp_path / "a"), 32, cache=tmp_path / "cache", advance=seen.append)
    assert torch.equal(after.x, before.x)
    assert sum(seen) == 6


def test_size_and_rows_make_entries_of_their_own(tmp_path):
    found = listing(pictures(tmp_path / "a"))
    part = take(found, [4, 1, 1])
    whole = open_store(found, 32, cache=tmp_path / "cache").x
    assert torch.equal(open_store(part, 32, cache=tmp_path / "cache").x, whole[[4, 1, 1]])
    open_store(found, 16, cache=tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 3


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_a_changed_place_is_noticed(tmp_path, change):
    root = pictures(tmp_path / "a")
    open_store(listing(root), 32, cache=tmp_path / "cache")
    open_store(take(listing(root), [0, 1]), 32, cache=tmp_path / "cache")
    other = pictures(tmp_path / "b", seed=1)
    open_store(listing(other), 32, cache=tmp_path / "cache")
    first = sorted((root / "cat").iterdir())[0]
    if change == "remove":
        first.unlink()
    else:
        Image.new("RGB", (20, 20), "red").save(first if change == "edit" else root / "cat" / "new.png")
    found = listing(root)
    stored = open_store(found, 32, cache=tmp_path / "cache")
    assert torch.equal(stored.x, found.read(range(len(found)), 32).x)
    assert stored.notes == [f"{root}: changed since it was last decoded, so it is decoded anew"]
    origins = [entry.origin for entry in entries(tmp_path / "cache")]
    assert sorted(origins) == sorted([str(root), str(other)])  # both stale entries are gone, the other place's stays


def test_unreadable_pictures_are_remembered(tmp_path):
    root = pictures(tmp_path / "a")
    (root / "cat" / "0001.png").write_bytes(b"")
    for _ in range(2):
        stored = open_store(listing(root), 32, cache=tmp_path / "cache")
        assert stored.failures == [(0, "empty file")]
        assert stored.kept == [1, 2, 3, 4, 5]
        assert len(stored.x) == 5


def test_nothing_readable_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGEST_RAW", 2 * 3 * 32 * 32)
    root = pictures(tmp_path / "a", count=2)
    for file in root.rglob("*.png"):
        file.write_bytes(b"")
    for size in (32, 96):
        stored = open_store(listing(root), size, cache=tmp_path / "cache")
        assert len(stored.x) == 0
        assert stored.x[:].shape == (0, 3, size, size)


def test_many_pictures_go_through_several_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "FEW", 10)
    monkeypatch.setattr(decoding, "CHUNK", 4)
    monkeypatch.setattr(forked, "cores", lambda: 3)
    root = pictures(tmp_path / "a", count=51)
    sorted(root.rglob("*.png"))[13].write_bytes(b"no picture")
    found = listing(root)
    stored = open_store(found, 32, cache=tmp_path / "cache")
    decoded = found.read(range(51), 32)
    assert torch.equal(stored.x, decoded.x)
    assert stored.failures == decoded.failures == [(13, "not a picture or damaged")]


def test_a_worker_that_is_killed_is_told_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "FEW", 1)
    monkeypatch.setattr(forked, "cores", lambda: 2)
    monkeypatch.setattr(decoding, "CHUNK", 2)
    monkeypatch.setattr(forked, "_run", _die)
    with pytest.raises(UserError, match="was killed, perhaps for want of memory"):
        open_store(listing(pictures(tmp_path / "a")), 32, cache=tmp_path / "cache")
    assert entries(tmp_path / "cache") == []


def _die(start: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


BUILD = """
import sys, time
from graphmsda.data import store
from graphmsda.data.formats import open_listing
slow = float(sys.argv[3])
inner = store.decode_in_order
def slowly(*arguments):
    for chunk in inner(*arguments):
        print("decoding", flush=True)
        time.sleep(slow)
        yield chunk
store.decode_in_order = slowly
print(int(store.open_store(open_listing(sys.argv[1], labelled=False), 32, cache=sys.argv[2]).x.long().sum()))
"""


def build(root: Path, cache: Path, pause: float = 0.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(root), str(cache), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_that_want_the_same_entry(tmp_path):
    root, cache = pictures(tmp_path / "a", count=30), tmp_path / "cache"
    both = [build(root, cache, 0.5), build(root, cache, 0.5)]
    outcomes = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outcomes
    sums = {out.splitlines()[-1] for out, _ in outcomes}
    assert sums == {str(int(open_store(listing(root), 32, cache=cache).x.long().sum()))}
    assert sum(out.count("decoding") for out, _ in outcomes) == 1  # one decoded, the other waited
    assert len(entries(cache)) == 1


def test_a_killed_build_leaves_nothing_that_counts(tmp_path):
    root, cache = pictures(tmp_path / "a", count=30), tmp_path / "cache"
    process = build(root, cache, 60.0)
    assert process.stdout.readline() == "decoding\n"
    process.kill()
    process.wait(timeout=60)
    assert [entry.images for entry in entries(cache)] == [0]  # shown as unfinished
    found = listing(root)
    assert torch.equal(open_store(found, 32, cache=cache).x, found.read(range(30), 32).x)
    assert [entry.images for entry in entries(cache)] == [30]


def test_a_full_disk(tmp_path):
    """A limit on the size of files stands for a disk without room: the operating system refuses the same writes."""
    root, cache = pictures(tmp_path / "a", count=30), tmp_path / "cache"
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))" + BUILD
    found = subprocess.run(
        [sys.executable, "-c", code, str(root), str(cache), "0"], capture_output=True, text=True, timeout=120
    )
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith("graphmsda.errors.UserError: ")
    assert "no room left for the decoded pictures" in last
    assert "--cache" in last
    assert entries(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")  # even the administrator cannot make a folder below a file
    root = pictures(tmp_path / "a")
    stored = open_store(listing(root), 32, cache=blocked / "cache")
    assert torch.equal(stored.x, listing(root).read(range(6), 32).x)
    assert len(stored.notes) == 1
    assert "cannot be written" in stored.notes[0]
    assert "--cache" in stored.notes[0]


def test_a_read_only_cache_still_serves(tmp_path, monkeypatch):
    found = listing(pictures(tmp_path / "a"))
    open_store(found, 32, cache=tmp_path / "cache")

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(store.os, "utime", refuse)
    monkeypatch.setattr(store.tempfile, "TemporaryFile", refuse)
    assert open_store(found, 32, cache=tmp_path / "cache").notes == []
    assert "Read-only" in open_store(found, 16, cache=tmp_path / "cache").notes[0]


def test_without_a_cache(tmp_path):
    root = pictures(tmp_path / "a")
    code = (
        "import sys\nfrom graphmsda.data import store\nfrom graphmsda.data.formats import open_listing\n"
        "x = store.open_store(open_listing(sys.argv[1], labelled=False), 32, cache='none').x\n"
        "print(len(x), store._temporary())"
    )
    environment = {**os.environ, "GRAPHMSDA_CACHE": str(tmp_path / "unused")}
    out = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, env=environment)
    count, folder = out.stdout.split()
    assert count == "6"
    assert not Path(folder).exists()
    assert not (tmp_path / "unused").exists()


def test_a_newer_version_and_damage(tmp_path):
    found = listing(pictures(tmp_path / "a"))
    open_store(found, 32, cache=tmp_path / "cache")
    (entry,) = entries(tmp_path / "cache")
    about = json.loads((entry.path / ABOUT).read_text())
    (entry.path / ABOUT).write_text(json.dumps(about | {"format": 2}))
    with pytest.raises(UserError, match=r"written by a newer graphmsda \(format 2, this one reads 1\); upgrade"):
        open_store(found, 32, cache=tmp_path / "cache")
    assert (entry.path / SAMPLES).is_file()
    for text in ("", "{}", "[]", json.dumps(about | {"count": 5}), json.dumps(about | {"shape": [6, 3, 31, 32]})):
        (entry.path / ABOUT).write_text(text)
        with pytest.raises(UserError, match="this entry of the cache is damaged") as caught:
            open_store(found, 32, cache=tmp_path / "cache")
        assert "\n" not in str(caught.value)
    (entry.path / ABOUT).write_text(json.dumps(about))
    with (entry.path / SAMPLES).open("r+b") as file:
        file.truncate(100)
    with pytest.raises(UserError, match="has 100 bytes"):
        open_store(found, 32, cache=tmp_path / "cache")


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("GRAPHMSDA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "graphmsda"
    monkeypatch.setenv("GRAPHMSDA_CACHE", "~/x")
    assert cache_folder() == Path.home() / "x"
    assert cache_folder("y") == Path("y")


def test_showing_and_clearing(tmp_path):
    cache = tmp_path / "cache"
    assert entries(cache) == []
    assert cache_page(cache, []) == f"{cache}: nothing is kept there"
    roots = [pictures(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    for root in roots:
        open_store(listing(root), 32, cache=cache)
        time.sleep(0.01)
    (cache / "somebody-elses").mkdir()
    found = entries(cache)
    assert [entry.origin for entry in found] == [str(roots[1]), str(roots[0])]  # last used first
    assert {entry.images for entry in found} == {6}
    page = cache_page(cache, found)
    assert str(roots[0]) in page
    assert "2 entries" in page
    for file in sorted(roots[0].rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    roots[0].rmdir()
    assert "(gone)" in cache_page(cache, entries(cache))
    assert [entry.origin for entry in clear(cache, [str(roots[0])])] == [str(roots[0])]
    assert len(clear(cache)) == 1
    assert [file.name for file in cache.iterdir()] == ["somebody-elses"]
