"""Whether a file is the one that was published or, where no checksum is published, the one first seen."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmsda.data.progress import amount_bar
from graphmsda.errors import UserError
from graphmsda.files import write_text

CHOOSE = "choose another --root"
CHUNK = 1 << 20


class Mismatch(Exception):  # noqa: N818 - it describes the file
    """A file that is not the one expected; the message says what was found and what was expected."""


@dataclass(frozen=True)
class Published:
    """The checksums that a publisher gives for a file, in hexadecimal digits."""

    sha256: str | None = None
    md5: str | None = None

    @property
    def known(self) -> bool:
        """Whether there is one."""
        return bool(self.sha256 or self.md5)


def digests_of(path: Path, progress: bool = False) -> dict[str, str]:
    """Return the checksums of a file by the names that `Published` gives them."""
    digests = {"sha256": hashlib.sha256(), "md5": hashlib.md5(usedforsecurity=False)}
    done = 0
    try:
        title, size = f"checking {path.name.removesuffix('.part')}", path.stat().st_size
        with path.open("rb") as file, amount_bar(title, size, unit="bytes", enabled=progress) as show:
            while chunk := file.read(CHUNK):
                for digest in digests.values():
                    digest.update(chunk)
                done += len(chunk)
                show(done)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); move it away and run the command again") from error
    return {name: digest.hexdigest() for name, digest in digests.items()}


def check(path: Path, found: dict[str, str], published: Published, record: Path) -> str:
    """Compare checksums with the published one, else with the recorded one; return which it was.

    Returns:
        ``published checksum``, ``checksum seen before``, or ``first seen`` where there was nothing to compare with.

    Raises:
        Mismatch: It is another file.
    """
    for kind, expected in (("sha256", published.sha256), ("md5", published.md5)):
        if expected is not None and found[kind] != expected.lower():
            raise Mismatch(f"its {kind} checksum is {found[kind]} and not {expected} as published")
    if published.known:
        return "published checksum"
    seen = _read(record).get(_key(path, record))
    if seen is None:
        return "first seen"
    if seen["sha256"] != found["sha256"]:
        raise Mismatch(
            f"its sha256 checksum is {found['sha256']} and not {seen['sha256']} as when it was first seen "
            f"(on {seen.get('seen')}, recorded in {record})"
        )
    return "checksum seen before"


def remember(path: Path, found: dict[str, str], record: Path, url: str) -> None:
    """Record the checksum of a file seen for the first time."""
    known = _read(record)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    known[_key(path, record)] = {"sha256": found["sha256"], "from": url, "seen": today}
    write_text(record, json.dumps(known, indent=2, sort_keys=True, ensure_ascii=False) + "\n", CHOOSE)


def _key(path: Path, record: Path) -> str:
    return path.relative_to(record.parent).as_posix()


def _read(record: Path) -> dict[str, Any]:
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        if isinstance(known, dict) and all(isinstance(seen["sha256"], str) for seen in known.values()):
            return known
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise UserError(f"{record}: cannot be read as checksums of graphmsda; mend it, or remove it to record them anew")
