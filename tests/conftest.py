"""Small tasks that train in a second, and the settings that go with them."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion

from graphmsda import Domain, Task, Unlabelled

torch.set_num_threads(1)

QUICK: dict[str, Any] = {"epochs": 2, "steps_per_epoch": 3, "batch_size": 6, "device": "cpu"}


def feature_task(sources: int = 2, classes: int = 3, size: int = 20, features: int = 5, seed: int = 0) -> Task:
    """Classes as Gaussian clouds, each domain shifted."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(classes, features, generator=generator)

    def domain(name: str) -> Domain:
        y = torch.arange(size) % classes
        shift = torch.randn(features, generator=generator)
        return Domain(name, centres[y] + shift + torch.randn(size, features, generator=generator), y)

    domains = [domain(f"source-{m}") for m in range(sources)]
    return Task(tuple(domains), domain("target").unlabelled(), tuple(f"class-{k}" for k in range(classes)))


def image_task(sources: int = 2, classes: int = 3, size: int = 12, side: int = 16, seed: int = 0) -> Task:
    """Noise images whose mean brightness tells the class."""
    generator = torch.Generator().manual_seed(seed)

    def domain(name: str) -> Domain:
        y = torch.arange(size) % classes
        x = torch.randint(0, 120, (size, 3, side, side), generator=generator) + 40 * y[:, None, None, None]
        return Domain(name, x.to(torch.uint8), y)

    domains = [domain(f"source-{m}") for m in range(sources)]
    return Task(tuple(domains), Unlabelled("target", domain("target").x), tuple(f"class-{k}" for k in range(classes)))


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Decoded pictures go to a folder of this test run, for subprocesses too."""
    os.environ["GRAPHMSDA_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def imaginary_gpu() -> None:
    """Lets a test put tensors without values on a GPU that is not there."""
    if not torch.cuda.is_available() and torch.__version__ < (2, 11):
        pytest.skip("PyTorch 2.6 asks the driver even for tensors without values and ends the process")


@pytest.fixture
def triton_interpreter() -> None:
    """Lets a test run kernels on the CPU."""
    triton = pytest.importorskip("triton")
    if TorchVersion(np.__version__) >= (2, 4) and TorchVersion(triton.__version__) < (3, 7):
        pytest.skip("the interpreter of Triton before 3.7 does not work with NumPy 2.4 or later")


@pytest.fixture
def features() -> Task:
    return feature_task()


@pytest.fixture
def images() -> Task:
    return image_task()
