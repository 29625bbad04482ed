"""Getting a benchmark onto the disk: what can be fetched is fetched, for the rest a person is told what to do.

`prepare` does it, `prepare_page` tells it. Everything goes below ``<root>/<benchmark>/``, where the readers look.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from graphmsda.data.benchmarks.benchmark import Benchmark, Found
from graphmsda.data.benchmarks.catalogue import find_benchmark
from graphmsda.data.obtain.checksums import CHOOSE
from graphmsda.data.obtain.connection import Unavailable
from graphmsda.data.obtain.download import fetch
from graphmsda.data.obtain.sources import SOURCES, Remote
from graphmsda.data.progress import told
from graphmsda.errors import UserError
from graphmsda.files import explain_write_errors

MOST_FILES, MOST_BYTES = 200_000, 4 << 30  # what an archive may unfold to; MNIST-M has 68,004 files


@dataclass(frozen=True)
class Row:
    """What became of one file.

    Attributes:
        remote: The file.
        state: ``there``, ``fetched`` or ``missing``.
        note: How it was checked, what serves instead, or why it is missing, in a few words.
        detail: A whole sentence about what is wrong, where a few words do not do.
    """

    remote: Remote
    state: str
    note: str
    detail: str = ""


@dataclass(frozen=True)
class Prepared:
    """What became of the files of a benchmark below `place`."""

    benchmark: Benchmark
    place: Path
    rows: tuple[Row, ...]

    @property
    def missing(self) -> list[Row]:
        """The files that are not there."""
        return [row for row in self.rows if row.state == "missing"]

    def require(self) -> None:
        """Raise a `UserError` of one sentence if a file is missing."""
        if self.missing:
            raise UserError(
                f"{self.benchmark.name}: {len(self.missing)} of {len(self.rows)} files are missing in {self.place}; "
                "put them where the list above says, or run the same command again if the connection failed"
            )


def prepare(name: str, root: Path, *, only: Sequence[str] = (), progress: bool = False) -> Prepared:
    """Fetch the files of a benchmark that are not there, check all, and report.

    A file that cannot be fetched does not keep the others from it. Interrupted, the same call goes on from there.

    Args:
        name: The benchmark.
        root: The data root; files go into the folder of the benchmark's name below it.
        only: Names of files, folders or domains to deal with; all by default.
        progress: Show progress on stderr.
    """
    if name.strip().lower() == "weights":
        raise UserError("weights need no preparing: torchvision fetches ImageNet weights when they are first asked for")
    benchmark = find_benchmark(name)
    if root.exists() and not root.is_dir():
        raise UserError(f"--root {root}: a file; give the folder that holds the benchmarks, or one to be made")
    place = root / benchmark.name
    rows = []
    for remote in _chosen(SOURCES[benchmark.name], only):
        row = _obtain(benchmark, place, remote, progress)
        if progress and remote.urls and row.state != "there":  # the page tells the rest
            print(f"{remote.place}: {row.state}, {row.detail or row.note}", file=sys.stderr, flush=True)
        rows.append(row)
    return Prepared(benchmark, place, tuple(rows))


def prepare_page(report: Prepared) -> str:
    """Return the report for people: a table, then what to do about each missing file."""
    from graphmsda.tables import new_table, render

    table = new_table("file", "size", "state", "meaning")
    table.columns[0].justify = table.columns[2].justify = "left"
    table.columns[3].header = ""
    for row in report.rows:
        size = told(row.remote.size) if row.remote.size is not None else "-"
        table.add_row(row.remote.place, size, row.state, row.note)
    lines = [f"{report.benchmark.title} in {report.place}", "", render(table), ""]
    licences: dict[str, None] = {}
    for row in report.rows:
        licences[f"{row.remote.folder}: {row.remote.licence}" if row.remote.folder else row.remote.licence] = None
    lines.append(f"licences: {', '.join(licences)}")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in report.missing:
        groups.setdefault((row.remote.page, row.remote.folder, row.remote.hint), []).append(row)
    for (page, folder, hint), rows in groups.items():
        lines += ["", f"missing: {', '.join(row.remote.file for row in rows)}"]
        lines += [f"  get from  {page}", f"  put into  {report.place / folder}"]
        if hint:
            lines.append(f"  {hint.format(place=shlex.quote(str(report.place)))}")
        lines += [f"  {row.detail}" for row in rows if row.detail]
    return "\n".join(lines)


def _chosen(remotes: Sequence[Remote], only: Sequence[str]) -> list[Remote]:
    for name in only:
        if not any(_is_called(remote, name) for remote in remotes):
            known = dict.fromkeys(name for remote in remotes for name in (remote.file, remote.folder) if name)
            raise UserError(f"--only {name}: no such file; choose from {', '.join(known)}")
    return [remote for remote in remotes if not only or any(_is_called(remote, name) for name in only)]


def _is_called(remote: Remote, name: str) -> bool:
    return name.rstrip("/") in (remote.file, remote.place, remote.folder or remote.domain, remote.domain)


def _obtain(benchmark: Benchmark, place: Path, remote: Remote, progress: bool) -> Row:
    path = place / remote.place
    if path.exists():
        if not remote.urls:
            return Row(remote, "there", "put there by hand")
    elif served := _served(benchmark, place, remote):
        return Row(remote, "there", f"as {served}")
    if not remote.urls:
        return Row(remote, "missing", "to be fetched by hand")
    problem = Row(remote, "missing", "")
    for url in remote.urls:
        try:
            fetched = fetch(url, path, md5=remote.md5, record=place / "checksums.json", progress=progress)
            if remote.unpack is not None:
                _unpack(path, remote.unpack)
        except Unavailable as error:
            problem = Row(remote, "missing", error.reason)
        except UserError as error:
            problem = Row(remote, "missing", "see below", str(error))
            if path.exists():  # another address will not mend what is wrong with a file that is there
                break
        else:
            return Row(remote, "fetched" if fetched.received else "there", fetched.checked)
    return problem


def _served(benchmark: Benchmark, place: Path, remote: Remote) -> str | None:
    """Return what lies there in place of a file, for the readers to read."""
    found = benchmark.find(place, remote.domain)
    if isinstance(found, Found):
        return os.path.relpath(found.files[0], place)
    return next((name for name in remote.instead if (place / name).exists()), None)


def _unpack(archive: Path, leading: str) -> None:
    """Unpack an archive beside itself, whole or not at all, and remove it."""
    beside = archive.with_name(f".{archive.name}.{os.getpid()}.part")
    try:
        with explain_write_errors(archive.parent, CHOOSE):
            _unpack_to(archive, leading, beside)
            for entry in sorted(beside.iterdir()):
                target = archive.parent / entry.name
                if target.exists():
                    raise UserError(f"{target}: in the way of what {archive.name} holds; move it away")
                os.replace(entry, target)
            archive.unlink()
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _unpack_to(archive: Path, leading: str, folder: Path) -> None:
    count = size = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                parts = path.parts[1:] if path.parts[:1] == (leading,) else path.parts
                if not member.isfile() or not parts or parts[-1].startswith("."):
                    continue
                count, size = count + 1, size + member.size
                if path.is_absolute() or ".." in parts or count > MOST_FILES or size > MOST_BYTES:
                    raise UserError(f"{archive}: holds {member.name!r}, more than it should; remove it")
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None  # it is a file
                with source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UserError(f"{archive}: cannot be unpacked ({error}); remove it and run the command again") from error
    if not count:
        raise UserError(f"{archive}: there is nothing in it to unpack; remove it and run the command again")
