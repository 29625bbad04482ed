"""What a server takes at most, and how it says no."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from graphmsda.data.images import MOST_PIXELS
from graphmsda.errors import UserError


def _limit(default: float, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"text": text})


@dataclass(frozen=True)
class Limits:
    """Bounds of one server; the flags of ``graphmsda serve`` are derived from the fields."""

    most_megabytes: float = _limit(32, "size of a request's body")
    most_images: int = _limit(64, "images in a request")
    most_megapixels: float = _limit(MOST_PIXELS / 1e6, "size of an image")
    most_requests: int = _limit(32, "requests at work at a time; more are told to come again")
    timeout: float = _limit(30, "seconds that a request may take, and a stop of the server")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise UserError(f"--{field.name.replace('_', '-')} {value}: out of range; give a number above 0")
        if self.most_megapixels > MOST_PIXELS / 1e6:
            raise UserError(
                f"--most-megapixels {self.most_megapixels:g}: larger images are never read; give up to "
                f"{MOST_PIXELS / 1e6:g}"
            )

    @property
    def most_bytes(self) -> int:
        """Bytes of a request's body."""
        return int(self.most_megabytes * 1e6)


class Refusal(Exception):  # noqa: N818 - it is an answer, not a fault
    """A request that is answered by a status of 4xx or 503 and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
