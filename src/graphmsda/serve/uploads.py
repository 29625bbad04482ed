"""Pictures out of a request's body: files of a form, or base64 in JSON."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from graphmsda.serve.limits import Limits, Refusal

Message = MutableMapping[str, Any]
MOST_NAME = 255  # characters of a file's name
MOST_FIELDS = 100  # of a form beside its files; they are not looked at
WAYS = 'send files as multipart/form-data, or JSON such as {"images": ["BASE64", ...]}'

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what is wrong with a form is told to its sender


class Upload(NamedTuple):
    """A picture as it was sent."""

    name: str
    data: bytes


async def read_uploads(request: Request, limits: Limits) -> list[Upload]:
    """Return the pictures of a request, at least one.

    Raises:
        Refusal: The body is too large, comes too slowly, or holds no pictures.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("multipart/form-data", "application/json"):
        raise Refusal(415, f"the content type is {kind or 'not given'}; {WAYS}")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limits.most_bytes:
        raise _too_large(limits)
    bounded = Request(request.scope, _bounded(request.receive, limits))
    try:
        async with asyncio.timeout(limits.timeout):
            found = await (_from_form if kind == "multipart/form-data" else _from_json)(bounded, limits)
    except TimeoutError:
        raise Refusal(408, f"the request took more than {limits.timeout:g} s to arrive; send fewer images") from None
    except ClientDisconnect:
        raise Refusal(400, "the request broke off; send it again") from None
    if not found:
        raise Refusal(422, f"there is no image in the request; {WAYS}")
    if len(found) > limits.most_images:
        raise _too_many(limits)
    return found


def _bounded(receive: Callable[[], Awaitable[Message]], limits: Limits) -> Callable[[], Awaitable[Message]]:
    """Return the same source of a body, which refuses to go on beyond the limit: lengths need not be told first."""
    count = 0

    async def bounded() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > limits.most_bytes:
            raise _too_large(limits)
        return message

    return bounded


async def _from_form(request: Request, limits: Limits) -> list[Upload]:
    try:
        async with request.form(max_files=limits.most_images, max_fields=MOST_FIELDS) as form:
            parts = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
            return [Upload(_name(part, place), await part.read()) for place, part in enumerate(parts, 1)]
    except HTTPException as error:  # what the parser says of it
        if "Too many files" in str(error.detail):
            raise _too_many(limits) from None
        reason = str(error.detail).strip().rstrip(".")
        raise Refusal(400, f"the form could not be read ({reason}); {WAYS}") from None


def _name(part: UploadFile, place: int) -> str:
    """Return what to call a file; a form may name an encoding by which its name is no text that can be sent back."""
    return (part.filename or "")[:MOST_NAME].encode(errors="replace").decode() or str(place)


async def _from_json(request: Request, limits: Limits) -> list[Upload]:
    body = await request.body()
    return await asyncio.get_running_loop().run_in_executor(None, parse_json, body, limits.most_images)


def parse_json(body: bytes, most: int) -> list[Upload]:
    """Return the pictures of a JSON text, named by their place.

    >>> parse_json(b'{"images": ["data:image/png;base64,aGVsbG8="]}', 1)
    [Upload(name='1', data=b'hello')]
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, f"the body is not JSON; {WAYS}") from None
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise Refusal(422, f"the JSON has no list of texts called images; {WAYS}")
    if unknown := sorted(content.keys() - {"images"}):
        raise Refusal(422, f"the JSON has an unknown name {unknown[0]!r}; {WAYS}")
    found = []
    for place, text in enumerate(images[: most + 1], 1):
        encoded = text.partition(",")[2] if text.startswith("data:") else text
        try:
            found.append(Upload(str(place), base64.b64decode(encoded, validate=True)))
        except (binascii.Error, ValueError):
            raise Refusal(422, f"image {place} is not base64; {WAYS}") from None
    return found


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, f"the request is larger than {limits.most_megabytes:g} MB; send fewer or smaller images")


def _too_many(limits: Limits) -> Refusal:
    return Refusal(413, f"the request has more than {limits.most_images} images; send them in several requests")
