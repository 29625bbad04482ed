"""A whole listing through all cores, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphmsda.data.images import Decoded
from graphmsda.data.listing import Listing
from graphmsda.forked import map_in_order

CHUNK = 128  # pictures handed to a process at a time
FEW = 1_000  # pictures below which starting processes costs more than it saves

Pack = Callable[[Decoded], list[bytes]]
Chunk = tuple[int, list[bytes], list[tuple[int, str]], int]  # first item, samples, failures, number of items


def decode_in_order(listing: Listing, image_size: int, pack: Pack) -> Iterator[Chunk]:
    """Decode a listing chunk by chunk, each sample packed into bytes.

    Small pictures keep the interpreter busier than the decoder, so threads alone would not do.
    """

    def decode(start: int) -> Chunk:
        indices = range(start, min(start + CHUNK, len(listing)))
        decoded = listing.read(indices, image_size)
        return start, pack(decoded), decoded.failures, len(indices)

    starts = range(0, len(listing), CHUNK)
    return map_in_order(decode, starts, what=str(listing.origin), processes=1 if len(listing) < FEW else None)
