"""Peak memory of both models at DomainNet's size: 345 classes, 6 domains, 2048 features, 96 queries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import graphmsda


@pytest.mark.parametrize(
    ("classes", "domains", "size", "batch"),
    [
        pytest.param(345, 6, 2048, 96, id="domainnet"),
        pytest.param(10, 21, 256, 96, id="twenty-sources"),
    ],
)
def test_forward_and_backward_fit_into_8_gigabytes(classes, domains, size, batch):
    script = Path(__file__).with_name("memory_at_size.py")
    environment = os.environ | {"PYTHONPATH": str(Path(graphmsda.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script), *map(str, (classes, domains, size, batch))],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8e9, done.stderr
