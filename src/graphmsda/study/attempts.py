"""Who works on a cell: an attempt is a file that only one process can make.

File locks are no help: network file systems have them or not, and a lock says nothing of a machine that is gone. What
all of them do (NFS since version 3) is to let only one of several processes create a file that was not there. So the
attempts at a cell are numbered files, ``attempt-1.json``, ``attempt-2.json``, ...; whoever makes the next one has the
cell. They are never removed: they are also the record of what failed and why.

An attempt that is running counts up a number in its file every few seconds. It is lost when its process no longer
exists, which is told at once on the same machine, or when another has watched that number stand still for `PATIENCE`
seconds by its own clock; clocks of different machines are never compared.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphmsda.files import explain_write_errors

BEAT = 10.0  # seconds between two signs of life
PATIENCE = 120.0  # seconds without one after which another machine's attempt is lost; network caches keep up to 60

RUNNING, DONE, FAILED, STOPPED = "running", "done", "failed", "stopped"

About = dict[str, Any]


def newest(place: Path) -> tuple[int, About]:
    """Return the number of the last attempt at a cell and what its file says; 0 and nothing where there is none."""
    number = max((int(file.stem.partition("-")[2]) for file in place.glob("attempt-*.json")), default=0)
    return (number, read(place, number)) if number else (0, {})


def read(place: Path, number: int) -> About:
    """Return what an attempt's file says; one that is just being made runs."""
    try:
        about: About = json.loads((place / f"attempt-{number}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"state": RUNNING}
    return about


def errors(place: Path) -> list[str]:
    """Return what all failed attempts said, the first one first."""
    number, _ = newest(place)
    told = (read(place, each) for each in range(1, number + 1))
    return [str(about["error"]) for about in told if about.get("state") == FAILED]


def is_gone(about: About) -> bool:
    """Whether a running attempt's process was on this machine and exists no more."""
    if about.get("host") != host():
        return False
    try:
        os.kill(int(about["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return about.get("started") != _started(int(about["pid"]))  # another process has got its number


class Watch:
    """Watches the attempts of others and tells which have stood still for too long."""

    def __init__(self, patience: float | None = None) -> None:
        self.patience = PATIENCE if patience is None else patience
        self._seen: dict[Path, tuple[tuple[int, Any], float]] = {}

    def look(self, place: Path) -> tuple[bool, int]:
        """Return whether somebody works on a cell, and else the attempt given up, or 0; to be asked now and then."""
        number, about = newest(place)
        if about.get("state") != RUNNING or is_gone(about):
            return False, 0
        sign, now = (number, about.get("beat")), time.monotonic()
        if place not in self._seen or self._seen[place][0] != sign:
            self._seen[place] = sign, now
        alive = now - self._seen[place][1] < self.patience
        return alive, 0 if alive else number


@dataclass
class Attempt:
    """An attempt of this process, alive until it is ended.

    Attributes:
        place: Where the cell's attempts are.
        number: Which it is.
        about: What its file says.
    """

    place: Path
    number: int
    about: About
    _ended: threading.Event = field(default_factory=threading.Event)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        threading.Thread(target=self._live, name="graphmsda-attempt", daemon=True).start()

    def is_mine(self) -> bool:
        """Whether nobody has given this process up and taken the cell over."""
        return newest(self.place)[0] == self.number

    def end(self, state: str, error: str | None = None) -> None:
        """Say how it ended."""
        self._ended.set()
        self._write({"state": state, "error": error})

    def _live(self) -> None:
        beat = 0
        while not self._ended.wait(BEAT):
            beat += 1
            try:
                if not self.is_mine():
                    return
                self._write({"beat": beat}, unless=self._ended)
            except OSError:  # a network file system that is away for a moment
                continue

    def _write(self, news: About, unless: threading.Event | None = None) -> None:
        with self._writing:
            if unless is not None and unless.is_set():
                return
            self.about |= news
            file = self.place / f"attempt-{self.number}.json"
            beside = self.place / f".{secrets.token_hex(8)}.part"
            beside.write_text(json.dumps(self.about) + "\n", encoding="utf-8")
            os.replace(beside, file)


def take(place: Path, *, lost: int = 0) -> Attempt | None:
    """Take a cell, or return None where another has it.

    Args:
        place: Where the cell's attempts are.
        lost: Number of an attempt that a `Watch` has given up.
    """
    number, about = newest(place)
    if about.get("state") == RUNNING and number != lost and not is_gone(about):
        return None
    pid = os.getpid()
    about = {"state": RUNNING, "host": host(), "pid": pid, "started": _started(pid), "beat": 0}
    about["begun"] = time.strftime("%Y-%m-%d %H:%M:%S")
    with explain_write_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(place / f"attempt-{number + 1}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return None  # another was faster
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(json.dumps(about) + "\n")
    return Attempt(place, number + 1, about)


def host() -> str:
    """Return a name that is only of this machine since it started, and of the container that numbers processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = space = ""
    return f"{socket.gethostname()} {boot} {space}".strip()


def _started(pid: int) -> str | None:
    """Return when a process began, in the system's own unit: a number may be used again by another process."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return "ended" if state == "Z" else rest[18]
    except (OSError, IndexError, ValueError):
        return None
