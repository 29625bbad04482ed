"""`graphmsda serve` as a user starts and stops it."""

from __future__ import annotations

import builtins
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from graphmsda.cli import main
from graphmsda.run import Run
from graphmsda.serve.commands import listen
from tests.serve.conftest import picture


def serve(run: Run, body: Callable[[int, Callable[[], None]], None], *flags: str) -> int:
    """Serve in this thread while another one asks, and tell it to stop, once, when that one is done or has failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    failures: list[BaseException] = []

    told: list[bool] = []

    def stop() -> None:
        if not told:  # a second signal would end the tests
            told.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    def ask() -> None:
        try:
            wait_for(port)
            body(port, stop)
        except BaseException as error:
            failures.append(error)
        finally:
            stop()

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    asking = threading.Thread(target=ask)
    asking.start()
    code = main(["serve", str(run.path), "--port", str(port), "--device", "cpu", *flags])
    asking.join()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    if failures:
        raise failures[0]
    return code


def wait_for(port: int) -> None:
    for _ in range(200):
        try:
            httpx.get(f"http://127.0.0.1:{port}/healthz").raise_for_status()
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError("the server did not begin")


def test_serving_and_stopping(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def body(port: int, stop: Callable[[], None]) -> None:
        answer = httpx.post(f"http://127.0.0.1:{port}/predict", files={"images": ("a.png", picture())})
        assert answer.json()["predictions"][0]["label"] in run.classes
        # A body far beyond the limit is refused without being kept, and the sender hears why.
        answer = httpx.post(f"http://127.0.0.1:{port}/predict", files={"images": ("a.png", bytes(5_000_000))})
        assert answer.status_code == 413
        assert answer.json()["error"] == "the request is larger than 1 MB; send fewer or smaller images"

    assert serve(run, body, "--most-megabytes", "1") == 0
    told = capsys.readouterr()
    assert re.search(r"serving mrf -> target \(3 classes\) at http://127\.0\.0\.1:\d+; Ctrl-C stops\n", told.out)
    assert told.out.endswith("stopped\n")
    assert "password" not in told.err


def test_a_request_in_flight_is_answered_before_the_end(run: Run) -> None:
    content = picture()
    head = b'--x\r\nContent-Disposition: form-data; name="a"; filename="a.png"\r\n\r\n'
    body = head + content + b"\r\n--x--\r\n"
    start = (
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    )
    answers: list[bytes] = []

    def ask(port: int, stop: Callable[[], None]) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sender:
            sender.sendall(start.encode() + body[:50])
            time.sleep(0.3)
            stop()
            time.sleep(0.3)
            with pytest.raises(OSError):  # nobody new is let in
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            sender.sendall(body[50:])
            while data := sender.recv(65536):
                answers.append(data)

    assert serve(run, ask) == 0
    answer = b"".join(answers)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b'"label"' in answer


def test_other_machines_are_let_in_only_when_asked(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(run, lambda port, stop: None, "--host", "0.0.0.0") == 0
    assert "--host 0.0.0.0: whoever reaches this machine can ask; there is no password" in capsys.readouterr().err


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["serve", *words]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    return told


def test_mistakes(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(run.path)
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        told = complaint(capsys, path, "--port", port)
        assert told.startswith(
            f"graphmsda: --host 127.0.0.1 --port {port}: cannot listen there (address already in use)"
        )
    assert "--port 70000: out of range" in complaint(capsys, path, "--port", "70000")
    assert "there is no such address" in complaint(capsys, path, "--port", "0", "--host", "no.such.host.invalid")
    for name in ("..", "ü" * 70):
        assert "there is no such address (not the name" in complaint(capsys, path, "--port", "0", "--host", name)
    assert "is not a run directory" in complaint(capsys, str(tmp_path), "--port", "0")
    assert "--most-images 0: out of range" in complaint(capsys, path, "--most-images", "0")
    assert "--examples: " in complaint(capsys, path, "--port", "0", "--examples")  # it was not trained on files
    assert "invalid int value" in complaint(capsys, path, "--port", "http")


def test_a_missing_package(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return usual(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    told = complaint(capsys, str(run.path))
    assert told == "graphmsda: serve: the package uvicorn is missing; pip install 'graphmsda[serve]'\n"
