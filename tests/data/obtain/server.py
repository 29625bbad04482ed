"""A web server for tests that can be told to misbehave, and keeps a record of what it was asked and what it sent."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Page:
    """One file and how it is served.

    `die` holds, for each answer in turn, after how many bytes the connection ends; the last one holds for all others.
    """

    content: bytes
    etag: str | None = '"1"'
    modified: str | None = None
    ranges: bool = True
    if_range: bool = True
    length: bool = True
    kind: str = "application/octet-stream"
    status: int | None = None
    shift: int = 0
    redirect: str | None = None
    die: list[int | None] = field(default_factory=list)


@dataclass
class Site:
    address: str = ""
    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range
    sent: int = 0

    def add(self, path: str, content: bytes, **options: object) -> str:
        self.pages[path] = Page(content, **options)  # type: ignore[arg-type]
        return self.address + path


def handler(site: Site) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            site.asked.append((self.path, self.headers["Range"]))
            page = site.pages.get(self.path)
            if page is None or page.status is not None:
                self.send_error(page.status if page and page.status else 404)
                return
            if page.redirect is not None:
                self.send_response(302)
                self.send_header("Location", page.redirect)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = self._start(page)
            if start is not None and start >= len(page.content):
                self.send_error(416)
                return
            self.send_response(200 if start is None else 206)
            body = page.content[(start or 0) + (page.shift if start is not None else 0) :]
            if start is not None:
                begin, total = start + page.shift, len(page.content)
                self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
            self.send_header("Content-Type", page.kind)
            if page.length:
                self.send_header("Content-Length", str(len(body)))
            else:
                self.send_header("Connection", "close")
                self.close_connection = True
            for name, value in (("ETag", page.etag), ("Last-Modified", page.modified)):
                if value is not None:
                    self.send_header(name, value)
            self.end_headers()
            stop = None
            if page.die:
                stop = page.die.pop(0) if len(page.die) > 1 else page.die[0]
            body = body if stop is None else body[:stop]
            site.sent += len(body)  # before the client can have seen them
            self.wfile.write(body)
            self.wfile.flush()
            if stop is not None:
                self.close_connection = True

        def _start(self, page: Page) -> int | None:
            asked = self.headers["Range"]
            mark = self.headers["If-Range"]
            if asked is None or not page.ranges:
                return None
            if page.if_range and mark is not None and mark not in (page.etag, page.modified):
                return None
            return int(asked.removeprefix("bytes=").removesuffix("-"))

    return Handler


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(site))
    server.daemon_threads = True
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
