"""How many samples go through a model at a time, and how reading, computing and answering overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from graphmsda.methods import Method

if TYPE_CHECKING:
    from graphmsda.data.images import Decoded
    from graphmsda.methods.base import Predictor

Part = TypeVar("Part")
Found = TypeVar("Found")
Result = TypeVar("Result")

CHUNK = 256  # samples read at a time, at least
MOST = 8192
GPU_BYTES = 2**26  # of a chunk in float32: what is launched once for a chunk then takes little of its time
# Of a piece in float32, on a CPU: a network's weights are read anew for each piece, what it makes of a piece is not to
# leave the cache. Between the two, the best sizes of four networks at 32 to 224 pixels were about these.
PIECE_BYTES = 2**23
LEAST_PIECE, MOST_PIECE = 16, 256


class Answers(NamedTuple):
    """What the model says of a chunk of samples; of those that could be read, in the tensors."""

    rows: range
    kept: list[int]
    """Which of the rows could be read."""
    failures: list[tuple[int, str]]
    """Which could not, and why."""
    probabilities: Tensor
    best: Tensor
    """The most probable class."""
    nearest: Tensor
    """The nearest source."""


@torch.inference_mode()
def answer(
    method: Method,
    predictor: Predictor,
    device: torch.device,
    read: Callable[[range], Decoded],
    parts: Sequence[range],
    domain: int = -1,
) -> Iterator[Answers]:
    """Yield what a method says of samples, a part at a time, reading the next part during the work.

    Args:
        method: Embeds the samples.
        predictor: Its predictor.
        device: Where it is.
        read: Returns the samples at some rows.
        parts: The rows to take at a time.
        domain: The domain whose batch statistics read the samples.
    """
    if device.type == "cuda" and device.index is None:  # "cuda" may mean another one to the thread that reads
        device = torch.device("cuda", torch.cuda.current_device())

    def fetch(rows: range) -> tuple[range, Decoded, Callable[[], Tensor] | None]:
        decoded = read(rows)
        return rows, decoded, to_device(decoded.x, device) if decoded.kept else None

    def work(fetched: tuple[range, Decoded, Callable[[], Tensor] | None]) -> Callable[[], Answers]:
        rows, decoded, arrived = fetched
        kept, failures = decoded.kept, decoded.failures  # all that the result is to hold of it
        if arrived is None:
            nothing = torch.empty(0, dtype=torch.int64)
            return lambda: Answers(rows, kept, failures, torch.empty(0, method.classes), nothing, nothing)
        log_probabilities, scores = predictor(embed(method, arrived(), domain))
        probabilities = log_probabilities.exp().float()
        copied = to_host(probabilities, probabilities.argmax(1), scores.argmax(1))
        return lambda: Answers(rows, kept, failures, *copied())

    begun = overlap(fetch, work, parts)
    for answers in one_behind(begun) if device.type == "cuda" else begun:
        yield answers()


def embed(method: Method, x: Tensor, domain: int = -1) -> Tensor:
    """Embed samples that are on the method's device in pieces that suit it: ``(N, ...) -> (N, d)``."""
    parts = [method.embed(piece, domain) for piece in pieces(x)]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def chunk_size(shape: Sequence[int], device: torch.device) -> int:
    """Return how many samples of a shape are read and predicted at a time, which bounds the memory this takes.

    >>> [chunk_size([3, side, side], torch.device("cuda")) for side in (32, 224)], chunk_size([5], torch.device("cpu"))
    ([5461, 256], 256)
    """
    if device.type == "cpu":
        return CHUNK
    return min(MOST, max(CHUNK, GPU_BYTES // _bytes(shape)))


def split_rows(count: int, shape: Sequence[int], device: torch.device) -> list[range]:
    """Return the rows of so many samples to read and predict at a time, in order.

    A GPU idles until the first ones have come, which are therefore few.

    >>> [len(rows) for rows in split_rows(12_000, [3, 32, 32], torch.device("cuda"))]
    [1365, 5461, 5174]
    >>> split_rows(300, [3, 32, 32], torch.device("cpu"))
    [range(0, 256), range(256, 300)]
    """
    size = chunk_size(shape, device)
    first = size if device.type == "cpu" else size // 4
    begins = [*range(0, min(first, count), first), *range(first, count, size)]
    return [range(begin, end) for begin, end in pairwise([*begins, count])]


def pieces(x: Tensor) -> Sequence[Tensor]:
    """Split a chunk into what a network best takes at once: on a GPU all of it, on a CPU what suits its cache.

    On a CPU, images of 32 x 32 go by 256, larger ones by fewer down to 16, but by no fewer than it has threads.
    """
    if x.is_cuda or len(x) == 0:
        return [x]
    fitting = min(MOST_PIECE, max(LEAST_PIECE, PIECE_BYTES // _bytes(x.shape[1:])))
    return torch.split(x, max(fitting, torch.get_num_threads()))


def _bytes(shape: Sequence[int]) -> int:
    return 4 * max(1, int(torch.Size(shape).numel()))


def overlap(read: Callable[[Part], Found], work: Callable[[Found], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """Yield ``work(read(part))`` for each part in order, the next one being read by a thread during the work.

    Nothing goes on while whoever asked has the word. What `read` raises is raised in its turn.
    """
    with ThreadPoolExecutor(1, "graphmsda-read") as thread:
        coming = deque(thread.submit(read, part) for part in parts[:1])
        for place in range(len(parts)):
            found = coming.popleft().result()
            coming.extend(thread.submit(read, part) for part in parts[place + 1 : place + 2])
            result = work(found)
            del found  # a chunk less in memory
            wait(coming)
            yield result


def one_behind(results: Iterator[Result]) -> Iterator[Result]:
    """Yield the results in order, each when the next has come: work begun on a GPU then goes on during the answer."""
    waiting: deque[Result] = deque()
    for result in results:
        waiting.append(result)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


def to_device(x: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Begin to copy samples to a device, and return a function that gives them to the thread that computes with them.

    To a GPU they go as they lie, from pinned memory and on a stream of their own: during the work on those before.
    """
    if device.type != "cuda" or x.is_cuda:
        return lambda: x.to(device)
    pinned = x if x.is_pinned() else torch.empty_like(x, pin_memory=True).copy_(x)
    stream = _copying(device)
    with torch.cuda.stream(stream):
        copy = pinned.to(device, non_blocking=True)
        copied = stream.record_event()

    def arrived() -> Tensor:
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        copy.record_stream(current)  # its memory is not given to the next copy before that work is done
        return copy

    return arrived


@cache  # memory on a GPU is kept for the stream it was taken on, so another one each time would take it anew
def _copying(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def to_host(*tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Begin to copy tensors of one device to the host, and return a function that waits for the copies."""
    copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)  # from a GPU, into pinned memory
    if not tensors[0].is_cuda:
        return lambda: copies
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensors[0].device))

    def finished() -> tuple[Tensor, ...]:
        copied.synchronize()
        return copies

    return finished
