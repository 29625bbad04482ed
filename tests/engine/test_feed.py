"""Samples to the training device: the same batches whether kept there or fetched ahead of time."""

from __future__ import annotations

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

from graphmsda import Domain, Task, Unlabelled, fit
from graphmsda.data import store
from graphmsda.data.encoded import Encoded
from graphmsda.data.formats import open_listing
from graphmsda.data.sampler import Stream
from graphmsda.data.store import open_store
from graphmsda.engine import feed
from graphmsda.engine.feed import AHEAD, Feed, size_in_bytes
from tests.conftest import QUICK

CPU = torch.device("cpu")


def encoded(tmp_path: Path, name: str, count: int, side: int = 72) -> Encoded:
    folder = tmp_path / name
    folder.mkdir()
    generator = np.random.default_rng(len(name) + count)
    for number in range(count):
        colour = generator.integers(0, 256, 3)
        Image.new("RGB", (side, side), tuple(int(c) for c in colour)).save(folder / f"{number:03}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "LARGEST_RAW", 0)
        stored = open_store(open_listing(folder, labelled=False), side, cache=tmp_path / "cache")
    assert isinstance(stored.x, Encoded)
    return stored.x


def streams(*sizes: int) -> list[Stream]:
    return [Stream(size, 5, seed) for seed, size in enumerate(sizes)]


@pytest.mark.parametrize("processes", [0, 2])
def test_fetched_batches_are_the_resident_ones(tmp_path, monkeypatch, processes):
    monkeypatch.setattr(feed, "_processes", lambda size: processes)
    samples = [encoded(tmp_path, "a", 13), encoded(tmp_path, "b", 7)]
    fetched = Feed(samples, streams(13, 7), CPU)
    resident = Feed(samples, streams(13, 7), CPU, "yes")
    assert not fetched.ready
    assert resident.ready
    for step in (0, 1, 2, 3, 9, 10, 4):  # forwards, a leap as after resuming, and back as after a failed step
        rows = torch.stack([stream.batches(range(step, step + 1))[0] for stream in resident.streams])
        for here, there, x, some in zip(fetched.fetch(step), resident.take(rows), samples, rows, strict=True):
            assert torch.equal(here, there)
            assert torch.equal(here, x[some])
    for number, x in enumerate(samples):
        whole = torch.cat([part for _, part in fetched.chunks(number)])
        assert torch.equal(whole, x[:])
        assert torch.equal(whole, torch.cat([part for _, part in resident.chunks(number)]))
    fetched.close()


def test_chunks_say_which_rows_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "chunk_size", lambda shape, device: 4)
    x = encoded(tmp_path, "a", 11)
    with_threads = Feed([x], streams(11), CPU)
    assert [(rows.start, rows.stop) for rows, _ in with_threads.chunks(0)] == [(0, 4), (4, 8), (8, 11)]
    for rows, part in with_threads.chunks(0):
        assert torch.equal(part, x[rows])


def test_how_many_processes(monkeypatch):
    monkeypatch.setattr(feed, "cores", lambda: 64)
    assert feed._processes(2**10) == feed.MOST_PROCESSES
    assert feed._processes(feed.MOST_SHARED // 10) == 5
    assert feed._processes(feed.MOST_SHARED) == 1
    monkeypatch.setattr(feed.parallel, "world_size", lambda: 8)
    assert feed._processes(2**10) == 8
    monkeypatch.setattr(feed, "can_fork", lambda: False)
    assert feed._processes(2**10) == 0


def test_few_steps_are_fetched_ahead(tmp_path):
    asked: list[int] = []

    class Counting:
        shape, dtype = (100, 3, 72, 72), torch.uint8

        def __len__(self) -> int:
            return 100

        def __getitem__(self, rows):
            asked.append(len(rows))
            return torch.zeros(len(rows), 3, 72, 72, dtype=torch.uint8)

    threads = Feed([Counting()], streams(100), CPU)
    for step in range(10):
        threads.fetch(step)
    deadline = time.monotonic() + 60
    while len(asked) < 10 + AHEAD - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(asked) == 10 + AHEAD - 1
    threads.close()


def test_tensors_in_memory_are_not_copied():
    x = torch.zeros(10, 3, 8, 8, dtype=torch.uint8)
    for resident in ("auto", "yes", "no"):
        kept = Feed([x], streams(10), CPU, resident)
        assert kept.ready
        assert kept.samples[0].data_ptr() == x.data_ptr()


def test_an_error_while_fetching_is_raised_in_the_step(tmp_path):
    x = encoded(tmp_path, "a", 9)
    x._bytes[:] = 0  # a private copy: the file stays
    fetched = Feed([x], streams(9), CPU)
    with pytest.raises(RuntimeError, match="cannot identify image"):
        fetched.fetch(0)
    fetched.close()


def test_size_in_bytes():
    assert size_in_bytes(torch.zeros(2, 3, 4, 5, dtype=torch.uint8)) == 120
    assert size_in_bytes(torch.zeros(2, 3)) == 24


@pytest.mark.parametrize("method", ["crf", "mrf"])
def test_training_is_the_same_to_the_bit(tmp_path, method):
    samples = [encoded(tmp_path, name, 12) for name in "abc"]
    y = torch.arange(12) % 3

    def run(kind: str, resident: str):
        x = [part if kind == "encoded" else part[:] for part in samples]
        task = Task((Domain("a", x[0], y), Domain("b", x[1], y)), Unlabelled("t", x[2]), ("k", "l", "m"))
        options = {**QUICK, "backbone": "small", "resident": resident}
        return fit(task, method=method, out=tmp_path / f"{kind}-{resident}", **options).method.state_dict()

    states = [run("encoded", "auto"), run("encoded", "yes"), run("tensor", "auto")]
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in state)


INTERRUPTED = """
import sys
from pathlib import Path
import torch
from graphmsda import Domain, Task, Unlabelled, fit
from graphmsda.data import store
from graphmsda.data.formats import open_listing
store.LARGEST_RAW = 0
x = store.open_store(open_listing(sys.argv[1], labelled=False), 72).x
task = Task((Domain("a", x, torch.arange(len(x)) % 2),), Unlabelled("t", x), ("0", "1"))
try:
    fit(task, "source-only", out=sys.argv[2], epochs=10_000, steps_per_epoch=1, batch_size=4, device="cpu",
        backbone="small", checkpoint_seconds=0)
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="decoding processes are forked on Linux alone")
def test_an_interrupt_reaches_the_trainer_and_not_its_workers(tmp_path):
    encoded(tmp_path, "a", 12)
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "a"), str(tmp_path / "run")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "checkpoint" / "state.safetensors").is_file() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody hears it
    out, err = process.communicate(timeout=120)
    assert out == "stopped\n"
    assert "Traceback" not in err
    assert process.returncode == 0


MEMORY = """
import io, sys
import numpy as np, torch
from PIL import Image
from pathlib import Path
from graphmsda import Domain, Task, Unlabelled, fit
from graphmsda.data.encoded import Encoded
count, folder = int(sys.argv[1]), Path(sys.argv[2])
buffer = io.BytesIO()
noise = np.random.default_rng(0).integers(0, 256, (72, 72, 3), dtype=np.uint8)
Image.fromarray(noise).save(buffer, "JPEG", quality=95)
with (folder / "samples.bin").open("wb") as file:
    for _ in range(count):
        file.write(buffer.getvalue())
offsets = np.arange(count + 1, dtype=np.int64) * len(buffer.getvalue())
x = Encoded(folder / "samples.bin", offsets, (count, 3, 72, 72), "digest")
task = Task((Domain("a", x, torch.arange(count) % 2),), Unlabelled("t", x), ("0", "1"))
fit(task, "source-only", out=folder / "run", epochs=1, steps_per_epoch=20, batch_size=8, device="cpu", backbone="small")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_memory_does_not_grow_with_the_data(tmp_path):
    """The trainer's anonymous memory with a ten times larger streamed set: at most a tenth more."""
    # What the allocator keeps for threads that are idle would drown the difference.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}

    def anonymous(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        command = [sys.executable, "-c", MEMORY, str(count), str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return int(done.stdout)

    small, large = anonymous(1_500), anonymous(15_000)  # decoded, the latter would take 230 MB
    assert large < 1.1 * small, (small, large)
