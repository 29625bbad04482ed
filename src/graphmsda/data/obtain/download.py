"""Files from public addresses: resumed, retried, checked, and either whole or not there.

What has come so far lies in ``<name>.part``; beside it ``<name>.part.json`` says of which file it is a part. A file
whose checksum is wrong is set aside as ``<name>.bad``; it never takes the place of a good one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmsda.data.obtain.checksums import CHOOSE, Mismatch, Published, check, digests_of, remember
from graphmsda.data.obtain.connection import Broken, Unavailable, marks_of, open_at, place_of, read_some
from graphmsda.data.progress import Show, amount_bar, told
from graphmsda.errors import UserError
from graphmsda.files import explain_write_errors, write_text

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each further attempt, anew after each one that brought something


@dataclass(frozen=True)
class Fetched:
    """What became of one file.

    Attributes:
        path: Where it lies.
        size: Its bytes.
        sha256: Its checksum.
        received: Bytes that came over the network this time; 0 where it was there already.
        checked: Against what: ``published checksum``, ``checksum seen before`` or ``first seen``.
    """

    path: Path
    size: int
    sha256: str
    received: int
    checked: str


def fetch(
    url: str,
    destination: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    record: Path | None = None,
    progress: bool = False,
) -> Fetched:
    """Fetch a file, or go on fetching it, unless it is there already.

    Args:
        url: An http, https or ftp address.
        destination: Where the file goes.
        sha256: Published checksum.
        md5: Published checksum, where that is what is published.
        record: JSON file of first-seen checksums, to hold files without a published one to;
            ``checksums.json`` beside the file by default.
        progress: Show a progress bar on stderr.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https", "ftp"):
        raise UserError(f"{url}: not an http, https or ftp address; give one")
    record = destination.parent / "checksums.json" if record is None else record
    published = Published(sha256, md5)
    if destination.exists():
        found = digests_of(destination, progress)
        try:
            checked = check(destination, found, published, record)
        except Mismatch as error:
            raise UserError(
                f"{destination}: {error}; move it away and run the same command again to fetch it anew"
            ) from error
        if checked == "first seen":
            remember(destination, found, record, url)
        return Fetched(destination, destination.stat().st_size, found["sha256"], 0, checked)

    part, bad = _beside(destination, ".part"), _beside(destination, ".bad")
    with explain_write_errors(destination, CHOOSE):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with _alone(part, destination):
            received = _download(url, part, destination, trusted=published.known, progress=progress)
            found = digests_of(part, progress)
            try:
                checked = check(destination, found, published, record)
            except Mismatch as error:
                os.replace(part, bad)
                raise UserError(
                    f"{url}: what came is not the file expected, for {error}; it is kept as {bad}: run the same "
                    f"command again or, if that does not help, get the file by other means and put it at {destination}"
                ) from error
            if checked == "first seen":
                remember(destination, found, record, url)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, destination)
            bad.unlink(missing_ok=True)
    return Fetched(destination, destination.stat().st_size, found["sha256"], received, checked)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _about(part: Path) -> Path:
    return _beside(part, ".json")


@contextlib.contextmanager
def _alone(part: Path, destination: Path) -> Iterator[None]:
    """Keep two processes from writing one part, and leave no empty one behind."""
    with part.open("ab") as file:
        with contextlib.suppress(ImportError):  # Windows has no such lock
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"{destination}: another process is fetching it; wait until it is done") from error
        try:
            yield
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()
            if not part.exists():
                _about(part).unlink(missing_ok=True)


def _download(url: str, part: Path, destination: Path, *, trusted: bool, progress: bool) -> int:
    """Bring `part` to its full length, however many attempts that takes; return the bytes received."""
    received, failures, reached = 0, 0, part.stat().st_size
    with contextlib.ExitStack() as stack:
        bars: list[Show] = []  # one, made when the size is known

        def show(done: int, size: int | None) -> None:
            if not bars:
                bar = amount_bar(f"fetching {destination.name}", size, unit="bytes", enabled=progress)
                bars.append(stack.enter_context(bar))
            bars[0](done)

        while True:
            try:
                for size in _attempt(url, part, destination, trusted, show):
                    received += size
                return received
            except Broken as error:
                length = part.stat().st_size
                # Only a part longer than ever counts as headway: a server that begins anew each time and dies
                # half-way would otherwise keep us for ever.
                failures = 1 if length > reached else failures + 1
                reached = max(reached, length)
                if failures > len(PAUSES):
                    kept = f" (the {told(length)} that came are kept for then)" if length else ""
                    raise Unavailable(
                        url,
                        f"{error}, {failures} times in a row",
                        f"run the same command again later{kept}, or get the file by other means and put it at "
                        f"{destination}",
                    ) from error
                pause = PAUSES[failures - 1]
                if progress:
                    print(f"{destination.name}: {error}; trying again in {pause:.0f} s", file=sys.stderr, flush=True)
            time.sleep(pause)


def _attempt(
    url: str, part: Path, destination: Path, trusted: bool, show: Callable[[int, int | None], None]
) -> Iterator[int]:
    """Ask for what is missing, append it to `part`, and yield the size of each piece."""
    have, about = part.stat().st_size, _read_about(part)
    # Without a published checksum to catch it, pieces of two versions must not be joined unnoticed.
    if about.get("url") != url or not (trusted or about.get("etag") or about.get("modified")):
        have, about = 0, {}
    if have and have == about.get("size"):
        return
    response = open_at(url, destination, have, about)
    place = place_of(response, have, about)
    if place is None:
        response.close()
        response = open_at(url, destination, 0, {})
        place = place_of(response, 0, {})
    with contextlib.closing(response):
        if place is None:
            raise Broken("the server sent another piece of the file than it was asked for")
        have, size = place
        _check_room(destination, size, have)
        with part.open("r+b") as file:
            file.truncate(have)
            file.seek(have)
            _write_about(part, url, response, size)
            show(have, size)
            while chunk := read_some(response):
                file.write(chunk)
                file.flush()
                have += len(chunk)
                yield len(chunk)
                show(have, size)
    if size is not None and have < size:
        raise Broken(f"the connection ended after {told(have)} of {told(size)}")


def _read_about(part: Path) -> dict[str, Any]:
    try:
        about = json.loads(_about(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _write_about(part: Path, url: str, response: Any, size: int | None) -> None:
    write_text(_about(part), json.dumps({"url": url, "size": size, **marks_of(response.headers)}), CHOOSE)


def _check_room(destination: Path, size: int | None, have: int) -> None:
    free = shutil.disk_usage(destination.parent).free
    if size is not None and size - have > free:
        raise UserError(
            f"{destination}: {told(size - have)} are still to come and there is room for {told(free)}; "
            f"free some space and run the same command again, or {CHOOSE}"
        )
