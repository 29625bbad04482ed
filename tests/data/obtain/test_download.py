import errno
import hashlib
import json
import socket
import subprocess
import sys
import urllib.error
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.data.obtain.server import serving

from graphmsda.data.obtain import connection, download
from graphmsda.data.obtain.download import fetch
from graphmsda.errors import UserError

CONTENT = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()
HALF = len(CONTENT) // 2


@pytest.fixture
def site():
    with serving() as site:
        yield site


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(download, "PAUSES", (0.0, 0.0, 0.0))


def error(*arguments, **options):
    with pytest.raises(UserError) as caught:
        fetch(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_whole_and_checked(site, tmp_path):
    url = site.add("/a.bin", CONTENT)
    done = fetch(url, tmp_path / "deep" / "a.bin", sha256=SHA256, md5=MD5.upper())
    assert done.path.read_bytes() == CONTENT
    assert (done.size, done.sha256, done.received) == (len(CONTENT), SHA256, len(CONTENT))
    assert done.checked == "published checksum"
    assert names(tmp_path / "deep") == ["a.bin"]


def test_a_file_that_is_there_is_checked_and_not_fetched_again(site, tmp_path):
    url = site.add("/a.bin", CONTENT)
    (tmp_path / "a.bin").write_bytes(CONTENT)
    done = fetch(url, tmp_path / "a.bin", md5=MD5)
    assert (done.received, done.checked, site.asked) == (0, "published checksum", [])


def test_a_wrong_file_that_is_there_is_left_alone(site, tmp_path):
    url = site.add("/a.bin", CONTENT)
    (tmp_path / "a.bin").write_bytes(b"mine")
    text = error(url, tmp_path / "a.bin", md5=MD5)
    assert text.startswith(
        f"{tmp_path / 'a.bin'}: its md5 checksum is {hashlib.md5(b'mine').hexdigest()} and not {MD5}"
    )
    assert "move it away" in text
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    assert site.asked == []


@pytest.mark.parametrize("marks", [{"etag": '"x"'}, {"etag": None, "modified": "Mon, 02 Jan 2023 03:04:05 GMT"}])
def test_a_dying_connection_is_resumed_with_only_the_missing_bytes(site, tmp_path, marks):
    url = site.add("/a.bin", CONTENT, die=[HALF, None], **marks)
    done = fetch(url, tmp_path / "a.bin")
    assert done.path.read_bytes() == CONTENT
    assert site.asked == [("/a.bin", None), ("/a.bin", f"bytes={HALF}-")]
    assert site.sent == done.received == len(CONTENT)
    assert names(tmp_path) == ["a.bin", "checksums.json"]


def test_a_later_command_resumes_what_an_earlier_one_began(site, tmp_path):
    url = site.add("/a.bin", CONTENT, die=[HALF, 0])
    text = error(url, tmp_path / "a.bin", md5=MD5)
    assert "the connection ended after 256.0 kB of 512.0 kB, 4 times in a row" in text
    assert "the 256.0 kB that came are kept" in text
    assert f"put it at {tmp_path / 'a.bin'}" in text
    assert (tmp_path / "a.bin.part").read_bytes() == CONTENT[:HALF]
    assert not (tmp_path / "a.bin").exists()
    before = site.sent
    site.pages["/a.bin"].die = []
    assert fetch(url, tmp_path / "a.bin", md5=MD5).received == len(CONTENT) - HALF
    assert site.sent - before == len(CONTENT) - HALF
    assert names(tmp_path) == ["a.bin"]


def test_each_attempt_that_brings_something_earns_new_attempts(site, tmp_path):
    url = site.add("/a.bin", CONTENT, die=[30_000])
    assert fetch(url, tmp_path / "a.bin", md5=MD5).received == len(CONTENT)
    assert len(site.asked) > len(download.PAUSES) + 10


def test_a_server_without_ranges_sends_everything_again(site, tmp_path):
    url = site.add("/a.bin", CONTENT, ranges=False, die=[HALF, None])
    assert fetch(url, tmp_path / "a.bin", md5=MD5).received == HALF + len(CONTENT)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_that_always_dies_half_way_is_given_up(site, tmp_path):
    url = site.add("/a.bin", CONTENT, ranges=False, die=[HALF])
    assert "4 times in a row" in error(url, tmp_path / "a.bin")
    assert len(site.asked) <= 5


@pytest.mark.parametrize("obedient", [True, False])
def test_a_file_that_changed_between_attempts_starts_over(site, tmp_path, obedient):
    url = site.add("/a.bin", b"old" * 1000, die=[999, 0])
    error(url, tmp_path / "a.bin")
    new = site.add("/a.bin", CONTENT, etag='"2"', if_range=obedient)
    fetch(new, tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_part_of_a_longer_file_than_there_is_now_starts_over(site, tmp_path):
    url = site.add("/a.bin", CONTENT * 2, die=[len(CONTENT) + 5, 0])
    error(url, tmp_path / "a.bin")
    site.add("/a.bin", CONTENT, if_range=False)  # answers 416
    assert fetch(url, tmp_path / "a.bin", md5=MD5).received == len(CONTENT)


def test_without_marks_pieces_are_joined_only_under_a_published_checksum(site, tmp_path):
    for known, received in ((MD5, len(CONTENT)), (None, HALF + len(CONTENT))):
        name = f"{known}.bin"
        url = site.add(f"/{name}", CONTENT, etag=None, die=[HALF, None])
        assert fetch(url, tmp_path / name, md5=known).received == received
        assert (tmp_path / name).read_bytes() == CONTENT


def test_a_piece_from_another_place_is_not_appended(site, tmp_path):
    url = site.add("/a.bin", CONTENT, shift=10, die=[HALF, None])
    fetch(url, tmp_path / "a.bin", md5=MD5)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_part_from_another_address_is_not_continued(site, tmp_path):
    error(site.add("/old.bin", b"x" * len(CONTENT), die=[HALF, 0]), tmp_path / "a.bin", md5=MD5)
    fetch(site.add("/new.bin", CONTENT), tmp_path / "a.bin", md5=MD5)
    assert site.asked[-1] == ("/new.bin", None)


def test_a_part_that_was_complete_needs_no_connection(site, tmp_path):
    url = site.add("/a.bin", CONTENT)
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    (tmp_path / "a.bin.part.json").write_text(json.dumps({"url": url, "size": len(CONTENT), "etag": '"1"'}))
    assert fetch(url, tmp_path / "a.bin", md5=MD5).received == 0
    assert site.asked == []


@pytest.mark.parametrize("note", ["{", "[]", ""])
def test_a_damaged_note_about_the_part_starts_over(site, tmp_path, note):
    url = site.add("/a.bin", CONTENT)
    (tmp_path / "a.bin.part").write_bytes(b"?" * 100)
    (tmp_path / "a.bin.part.json").write_text(note)
    assert fetch(url, tmp_path / "a.bin", md5=MD5).received == len(CONTENT)


def test_a_server_that_does_not_tell_the_length(site, tmp_path):
    url = site.add("/a.bin", CONTENT, length=False)
    assert fetch(url, tmp_path / "a.bin", md5=MD5).size == len(CONTENT)


def test_a_redirect_keeps_the_range(site, tmp_path):
    site.add("/there.bin", CONTENT, die=[HALF, None])
    done = fetch(site.add("/here.bin", b"", redirect="/there.bin"), tmp_path / "a.bin", md5=MD5)
    assert done.received == site.sent == len(CONTENT)


def test_a_wrong_checksum_is_set_aside(site, tmp_path):
    url = site.add("/a.bin", CONTENT)
    text = error(url, tmp_path / "a.bin", sha256="0" * 64)
    assert f"its sha256 checksum is {SHA256} and not {'0' * 64} as published" in text
    assert names(tmp_path) == ["a.bin.bad"]
    assert (tmp_path / "a.bin.bad").read_bytes() == CONTENT
    fetch(url, tmp_path / "a.bin", sha256=SHA256)
    assert names(tmp_path) == ["a.bin"]


def test_the_first_checksum_seen_is_held_to_ever_after(site, tmp_path):
    url, place, record = site.add("/a.bin", CONTENT), tmp_path / "in" / "a.bin", tmp_path / "checksums.json"
    assert fetch(url, place, record=record).checked == "first seen"
    seen = json.loads(record.read_text())
    assert seen["in/a.bin"]["sha256"] == SHA256
    assert seen["in/a.bin"]["from"] == url
    assert fetch(url, place, record=record).checked == "checksum seen before"

    place.write_bytes(b"changed")
    text = error(url, place, record=record)
    assert f"not {SHA256} as when it was first seen (on 20" in text
    assert str(record) in text

    place.unlink()
    site.add("/a.bin", b"another", etag='"2"')
    assert "as when it was first seen" in error(url, place, record=record)
    assert names(tmp_path / "in") == ["a.bin.bad"]
    assert json.loads(record.read_text()) == seen


def test_a_file_put_there_by_hand_is_recorded(site, tmp_path):
    (tmp_path / "a.bin").write_bytes(CONTENT)
    assert fetch(site.address + "/a.bin", tmp_path / "a.bin").checked == "first seen"
    assert json.loads((tmp_path / "checksums.json").read_text())["a.bin"]["sha256"] == SHA256


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": {"md5": "x"}}'])
def test_a_damaged_record_is_named(site, tmp_path, text):
    (tmp_path / "checksums.json").write_text(text)
    url = site.add("/a.bin", CONTENT)
    assert error(url, tmp_path / "a.bin").startswith(f"{tmp_path / 'checksums.json'}: cannot be read")
    assert (tmp_path / "checksums.json").read_text() == text


@pytest.mark.parametrize(("status", "word"), [(404, "Not Found"), (403, "Forbidden"), (401, "Unauthorized")])
def test_a_refusal_is_told_at_once(site, tmp_path, status, word):
    url = site.add("/a.bin", b"", status=status)
    text = error(url, tmp_path / "a.bin")
    assert text.startswith(
        f"{url}: the server answered {status} {word}; get it by other means and put it at {tmp_path}"
    )
    assert len(site.asked) == 1
    assert names(tmp_path) == []


def test_an_overloaded_server_is_asked_again(site, tmp_path):
    url = site.add("/a.bin", CONTENT, status=503)
    assert "the server answered 503 Service Unavailable, 4 times in a row" in error(url, tmp_path / "a.bin")
    assert len(site.asked) == 4


def test_a_web_page_is_not_taken_for_the_file(site, tmp_path):
    url = site.add("/a.zip", b"<html>log in</html>", kind="text/html; charset=utf-8")
    assert "the server sent a web page instead of the file" in error(url, tmp_path / "a.zip")
    assert names(tmp_path) == []


def test_an_unknown_host(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr(connection.urllib.request, "urlopen", fail)
    text = error("https://no.such.host/a.bin", tmp_path / "a.bin")
    assert "the host no.such.host was not found; connect to the internet, or get it by other means" in text


def test_a_refused_connection(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.bin"
    assert "the connection failed (Connection refused), 4 times in a row" in error(url, tmp_path / "a.bin")


def test_a_silent_server(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "TIMEOUT", 0.05)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        text = error(f"http://127.0.0.1:{mute.getsockname()[1]}/a.bin", tmp_path / "a.bin")
    assert "the server was silent for 0 s, 4 times in a row" in text


def test_other_kinds_of_address_are_refused(tmp_path):
    assert "not an http, https or ftp address" in error("file:///etc/passwd", tmp_path / "a.bin")


def test_too_little_room_is_told_beforehand(site, tmp_path, monkeypatch):
    url = site.add("/a.bin", CONTENT)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    text = error(url, tmp_path / "a.bin")
    assert "512.0 kB are still to come and there is room for 1.0 kB; free some space" in text


LIMITED = """
import resource, sys
from pathlib import Path
from graphmsda.data.obtain.download import fetch
from graphmsda.errors import UserError
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    fetch(sys.argv[1], Path(sys.argv[2]), md5=sys.argv[3])
except UserError as error:
    print(error)
"""


def test_a_disk_that_fills_keeps_the_part_and_resumes(site, tmp_path):
    url, place = site.add("/a.bin", CONTENT), tmp_path / "a.bin"
    run = subprocess.run([sys.executable, "-c", LIMITED, url, place, MD5], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(f"{place}: no room left to write; free some space and run the same command again")
    assert run.stdout.count("\n") == 1
    assert run.stderr == ""
    kept = (tmp_path / "a.bin.part").stat().st_size
    assert 200_000 < kept <= 300_000
    assert fetch(url, place, md5=MD5).received == len(CONTENT) - kept


class Full:
    """A file on a disk that is full after the first piece."""

    def __init__(self, file):
        self.file, self.pieces = file, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, chunk):
        self.pieces += 1
        if self.pieces > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(chunk)


def test_a_full_disk_keeps_the_part_and_resumes(site, tmp_path, monkeypatch):
    url, place, real = site.add("/a.bin", CONTENT), tmp_path / "a.bin", Path.open

    def opened(path, mode="r", *arguments, **options):
        file = real(path, mode, *arguments, **options)
        return Full(file) if mode == "r+b" else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        assert error(url, place).startswith(f"{place}: no room left to write; free some space")
    kept = (tmp_path / "a.bin.part").stat().st_size
    assert 0 < kept < len(CONTENT)
    assert fetch(url, place).received == len(CONTENT) - kept
    assert place.read_bytes() == CONTENT


def test_a_folder_that_may_not_be_written(site, tmp_path):
    (tmp_path / "file").write_text("in the way")
    text = error(site.add("/a.bin", CONTENT), tmp_path / "file" / "a.bin")
    assert "a file or folder is in the way" in text
    assert "choose another --root" in text


def test_two_processes_do_not_write_one_part(site, tmp_path):
    import fcntl

    with (tmp_path / "a.bin.part").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process is fetching it" in error(site.add("/a.bin", CONTENT), tmp_path / "a.bin")


def test_an_interrupt_keeps_the_part(site, tmp_path, monkeypatch):
    url = site.add("/a.bin", CONTENT)
    real, seen = download.read_some, []

    def interrupted(response):
        if seen:
            raise KeyboardInterrupt
        seen.append(True)
        return real(response)

    monkeypatch.setattr(download, "read_some", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(url, tmp_path / "a.bin")
    monkeypatch.undo()
    kept = (tmp_path / "a.bin.part").stat().st_size
    assert kept > 0
    assert fetch(url, tmp_path / "a.bin").received == len(CONTENT) - kept


def test_progress_goes_to_standard_error_line_by_line(site, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("graphmsda.data.progress.EVERY", 0.0)
    url = site.add("/a.bin", CONTENT, die=[HALF, None])
    fetch(url, tmp_path / "a.bin", md5=MD5, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "fetching a.bin: " in err
    assert " of 512.0 kB, " in err
    assert "a.bin: the connection ended after 256.0 kB of 512.0 kB; trying again in 0 s" in err


def test_an_empty_file(site, tmp_path):
    url = site.add("/a.txt", b"")
    assert fetch(url, tmp_path / "a.txt").size == 0
