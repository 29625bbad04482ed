"""What a step is made of on a GPU: its kernels and copies, as the profiler sees them."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

LONGEST = 120  # characters of a kernel's name
MOST = 60  # kernels listed

Kernels = list[tuple[str, float, float]]

# The first rule that a kernel's name meets says what it does. Compiled kernels are named after what they fuse.
RULES = (
    ("optimiser and combined", r"adam|sgd|multi_tensor|lerp|foreach|addcdiv|^triton_for_|^triton_\w{3}_fused_\d+$"),
    ("norm and pooling", r"^_pool|^_sum_over_windows|^_spread|norm|pool|bn_|var_mean|threshold_backward"),
    ("copies", r"memcpy|memset|direct_copy|indexselect|index_select|^triton_\w+_fused_(_to_copy|copy_|clone|_)+\d*$"),
    ("convolution", r"^_sum_over_pixels|^(?!triton_).*(conv|implicit|fprop|dgrad|wgrad|cudnn|nhwc|nchw)"),
    ("matrix product", r"gemm|nvjet|cutlass|gemv|splitk"),
)
REST = "graph and losses"
GROUPS = ("convolution", "matrix product", "norm and pooling", "optimiser and combined", REST, "copies")


def profile(step: Callable[[], Any], steps: int) -> Kernels:
    """Return name, microseconds and calls a step of each kernel and copy, the longest first."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=activities) as found:
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
        found.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    return summarise(events, steps)


def summarise(events: Sequence[dict[str, Any]], steps: int) -> Kernels:
    """Add up a trace's events on the device by name."""
    total: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            name = shorten(event["name"])
            total[name] += event["dur"]
            calls[name] += 1
    return [(name, total[name] / steps, calls[name] / steps) for name in sorted(total, key=lambda name: -total[name])]


def shorten(name: str) -> str:
    """Return a kernel's name without what all of them share.

    >>> shorten("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::Adam>(int)")
    'multi_tensor_apply_kernel<Adam>(int)'
    """
    return re.sub(r"\b(void |at::|native::|std::|c10::|cuda::)|\(anonymous namespace\)::|<unnamed>::", "", name)[
        :LONGEST
    ]


def group(name: str) -> str:
    """Return what a kernel does, as far as its name tells.

    >>> [group(name) for name in ("nvjet_hsh_128x256_64x4", "triton_red_fused_convolution_var_mean_3", "triton_poi_1")]
    ['matrix product', 'norm and pooling', 'graph and losses']
    >>> [group(name) for name in ("_convolve", "_sum_over_pixels", "_sum_over_queries")]
    ['convolution', 'convolution', 'graph and losses']
    """
    return next((what for what, rule in RULES if re.search(rule, name, re.IGNORECASE)), REST)


def described(found: Kernels) -> dict[str, Any]:
    """Return what a row of results says of a step's kernels: microseconds, calls, and both of the longest ones."""
    groups = dict.fromkeys(GROUPS, 0.0)
    for name, spent, _ in found:
        groups[group(name)] += spent
    return {
        "kernels a step": sum(calls for *_, calls in found),
        "device microseconds": sum(spent for _, spent, _ in found),
        "groups": groups,
        "kernels": [list(kernel) for kernel in found[:MOST]],
    }
