"""A bounded load test of `graphmsda serve` on loopback.

    python benchmarks/serve.py --minutes 10 --out results/serve.json

Several clients, each with one connection, send a picture, wait for the answer, check it and send the next. Told are
requests per second, how long answers take, and the server's memory, threads and open files over time. An answer that is
missing, of another status than 200 or about another picture is an error, and so is a request that the server has
counted and no client has seen. Clients and server share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

import record
from graphmsda.data import demo
from graphmsda.engine.fit import fit
from graphmsda.run import Run
from graphmsda.serve.metrics import resident_bytes

EVERY = 5.0  # seconds between two looks at the server
WARM = 100  # requests that are not counted: first calls take memory that stays


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--images", type=int, default=1, help="pictures in a request")
    parser.add_argument("--run", type=Path, help="run directory (default: mrf trained on the demo for two epochs)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--commit", help="what was measured, where there is no git")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.run or train(Path(folder) / "run")
        requests = prepare(Run.load(path, device="cpu"), given.images)
        with serving(path) as (server, port):
            before = os.getloadavg()[0]
            row = asyncio.run(load(requests, port, server.pid, given.clients, 60 * given.minutes))
            row["load average before, after"] = [before, os.getloadavg()[0]]
            server.send_signal(signal.SIGTERM)
            row["exit code after SIGTERM"] = server.wait(60)
    images = f"{given.images} image{'s' if given.images > 1 else ''} a request"
    row = {"what": f"{given.clients} clients, {images}, {given.minutes:g} minutes"} | row
    print(record.dumps(record.rounded(row)))
    if given.out is not None:
        command = f"python benchmarks/serve.py --minutes {given.minutes:g} --clients {given.clients}"
        command += f" --images {given.images}"
        made = {"section": "serve", "command": command, **record.origin(given.commit)}
        record.merge(given.out, [{**made, "rows": [record.rounded(row)]}])
    return int(row["errors"] > 0 or row["lost"] != 0 or row["exit code after SIGTERM"] != 0)


def train(path: Path) -> Path:
    """Train a small model on the demo's data; how good it is matters little here."""
    fit(demo.load("neon")[0], "mrf", out=path, backbone="small", epochs=2, device="cpu")
    return path


def prepare(run: Run, images: int) -> list[tuple[bytes, list[str]]]:
    """Return requests as they go over the wire, each with the labels that `Run.predict` gives."""
    x = demo.load("neon")[0].target.x[: 32 * images]
    labels = run.predict(x.permute(0, 2, 3, 1).numpy()).labels
    found = []
    for place in range(0, len(x), images):
        parts = []
        for pixels in x[place : place + images]:
            file = BytesIO()
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "PNG")
            head = b'--limit\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
            parts.append(head + file.getvalue() + b"\r\n")
        body = b"".join(parts) + b"--limit--\r\n"
        head = f"POST /predict?top=3 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: multipart/form-data; boundary=limit\r\n\r\n"
        found.append((head.encode() + body, [str(label) for label in labels[place : place + images]]))
    return found


@contextmanager
def serving(path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start the server as a user does, and yield it with its port."""
    command = [sys.executable, "-m", "graphmsda", "serve", str(path), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            port = re.search(r":(\d+);", line)
            assert port is not None, line
            yield server, int(port.group(1))
        finally:
            server.kill()


class Load:
    """What the clients have seen."""

    def __init__(self, requests: list[tuple[bytes, list[str]]], port: int) -> None:
        self.requests, self.port = requests, port
        self.seconds, self.errors, self.wrong = array("d"), 0, []  # type: ignore[var-annotated]

    async def client(self, number: int, until: float, most: float = float("inf")) -> None:
        """Ask and check until a moment."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        place = number
        while time.monotonic() < until and place - number < most:
            request, labels = self.requests[place % len(self.requests)]
            begin = time.monotonic()
            writer.write(request)
            status, body = await answer(reader)
            self.seconds.append(time.monotonic() - begin)
            told = [one["label"] for one in json.loads(body)["predictions"]] if status == 200 else [str(status)]
            if told != labels:
                self.errors += 1
                self.wrong.append(told)
            place += 1
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = re.search(r"content-length: (\d+)", head)
    assert length is not None, head
    return int(head.split(None, 2)[1]), await reader.readexactly(int(length.group(1)))


async def load(requests: list[tuple[bytes, list[str]]], port: int, pid: int, clients: int, seconds: float) -> Any:
    """Run the clients and watch the server."""
    warm = Load(requests, port)
    await warm.client(0, float("inf"), WARM)
    await asyncio.gather(*(warm.client(number, time.monotonic() + 5) for number in range(clients)))
    now = Load(requests, port)
    looks: list[tuple[float, int, int, int]] = []
    begin = time.monotonic()

    async def watch() -> None:
        while True:
            looks.append((time.monotonic() - begin, *state(pid)))
            await asyncio.sleep(EVERY)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(now.client(number, begin + seconds) for number in range(clients)))
    took = time.monotonic() - begin
    watching.cancel()
    await asyncio.sleep(1)  # the last connections are being closed
    looks.append((took, *state(pid)))
    counted = await answered(port) - len(warm.seconds)
    times = sorted(now.seconds)
    memory = [look[1] / 2**20 for look in looks]
    half = len(looks) // 2
    trend = statistics.linear_regression([look[0] / 60 for look in looks[half:]], memory[half:]) if half > 2 else None
    return {
        "requests": len(times),
        "errors": now.errors + warm.errors,
        "lost": counted - len(times),
        "requests per second": len(times) / took,
        "p50 ms": 1000 * times[len(times) // 2],
        "p99 ms": 1000 * times[int(0.99 * len(times))],
        "longest ms": 1000 * times[-1],
        "memory MiB at start, peak, end": [memory[0], max(memory), memory[-1]],
        "memory growth in the second half, MiB a minute": None if trend is None else trend.slope,
        "memory MiB by minute": [one for one, look in zip(memory, looks, strict=True) if look[0] % 60 < EVERY],
        "threads at start, end": [looks[0][2], looks[-1][2]],
        "open files at start, end": [looks[0][3], looks[-1][3]],
    }


def state(pid: int) -> tuple[int, int, int]:
    """Return memory, threads and open files of a process."""
    return resident_bytes(pid) or 0, len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))


async def answered(port: int) -> int:
    """Return how many predictions the server says it has answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    _, body = await answer(reader)
    writer.close()
    return sum(int(float(n)) for n in re.findall(r'requests_total{path="/predict",[^}]*} (\S+)', body.decode()))


if __name__ == "__main__":
    sys.exit(main())
