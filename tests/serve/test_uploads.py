"""Bodies that come slowly or not to their end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from graphmsda.serve.limits import Limits, Refusal
from graphmsda.serve.uploads import read_uploads


def read(messages: list[dict[str, Any]], *, wait: float = 0.0, **limits: Any) -> Refusal:
    """Return how a body in these pieces is refused."""
    coming = iter(messages)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(wait)
        return next(coming)

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(Refusal) as caught:
        asyncio.run(read_uploads(Request(scope, receive), Limits(**limits)))
    return caught.value


def piece(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_that_comes_too_slowly() -> None:
    refusal = read([piece(b'{"images')] * 100, wait=0.05, timeout=0.2)
    assert (refusal.status, refusal.sentence[:37]) == (408, "the request took more than 0.2 s to a")


def test_a_body_that_breaks_off() -> None:
    refusal = read([piece(b'{"images'), {"type": "http.disconnect"}])
    assert (refusal.status, refusal.sentence) == (400, "the request broke off; send it again")


def test_a_body_is_not_read_beyond_its_limit() -> None:
    pieces = [piece(b"a" * 600), piece(b"a" * 600)]  # a third would end the test by StopIteration
    assert read(pieces, most_megabytes=0.001).status == 413
