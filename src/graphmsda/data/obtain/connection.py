"""Asking a server for a file, or for the rest of one, with every refusal told in one sentence."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from graphmsda import __version__
from graphmsda.errors import UserError

TIMEOUT = 30.0  # seconds without a connection, or without a byte
CHUNK = 1 << 18


class Broken(Exception):  # noqa: N818 - it describes the connection
    """An attempt that a later one may mend; the message is the reason, for people."""


class Unavailable(UserError):  # noqa: N818 - it describes the file
    """A file that cannot be had from an address; `reason` is the middle of the sentence, for tables."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        super().__init__(f"{url}: {reason}; {remedy}")
        self.reason = reason


def open_at(url: str, destination: Path, have: int, about: dict[str, Any]) -> Any:
    """Open an address from byte `have` on, on condition that the file is still the one that `about` describes.

    Raises:
        Broken: A later attempt may succeed.
    """
    request = urllib.request.Request(url, headers={"User-Agent": f"graphmsda/{__version__}"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if mark := about.get("etag") or about.get("modified"):
            request.add_header("If-Range", mark)
    by_hand = f"get it by other means and put it at {destination}"
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is no part of what is there now: begin anew
            return open_at(url, destination, 0, {})
        answer = f"the server answered {error.code} {error.reason}"
        if error.code in (408, 425, 429) or error.code >= 500:
            raise Broken(answer) from error
        raise Unavailable(url, answer, by_hand) from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, socket.gaierror):
            unknown = f"the host {urllib.parse.urlsplit(url).hostname} was not found"
            raise Unavailable(url, unknown, f"connect to the internet, or {by_hand}") from error
        if isinstance(reason, ssl.SSLCertVerificationError):
            doubt = f"the server could not prove who it is ({reason.verify_message})"
            raise Unavailable(url, doubt, by_hand) from error
        raise Broken(_reason(reason)) from error
    if response.headers.get_content_type() == "text/html" and destination.suffix not in (".html", ".htm"):
        response.close()
        raise Unavailable(url, "the server sent a web page instead of the file", by_hand)
    return response


def read_some(response: Any) -> bytes:
    """Return the next bytes of an answer; none at its end."""
    try:
        return bytes(response.read1(CHUNK) if hasattr(response, "read1") else response.read(CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise Broken(_reason(error)) from error


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"the server was silent for {TIMEOUT:.0f} s"
    if isinstance(error, http.client.IncompleteRead | ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return "the connection broke"
    detail = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"the connection failed ({detail})"


def place_of(response: Any, have: int, about: dict[str, Any]) -> tuple[int, int | None] | None:
    """Return from which byte on the answer runs, and the size of the whole file where it is told.

    None where the answer is a piece that does not belong behind the `have` bytes at hand.
    """
    headers = response.headers
    if getattr(response, "status", None) != 206:
        return 0, int(headers["Content-Length"]) if (headers["Content-Length"] or "").isdigit() else None
    stretch = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers["Content-Range"] or "")
    if stretch is None or int(stretch[1]) != have:
        return None
    size = None if stretch[3] == "*" else int(stretch[3])
    now = {"size": size, **marks_of(headers)}
    same = all(about.get(key) in (None, value) for key, value in now.items() if value is not None)
    return (have, size) if same else None


def marks_of(headers: Any) -> dict[str, str | None]:
    """Return what tells this version of the file from another; weak tags do not vouch for single bytes."""
    etag = headers["ETag"]
    return {"etag": None if etag is None or etag.startswith("W/") else etag, "modified": headers["Last-Modified"]}
