"""Kernels are chosen beside the compiler, for the right shapes, and nothing else changes by it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphmsda.backbones import build_backbone
from graphmsda.engine import trials
from graphmsda.engine.trials import convolutions, trials_beside, try_gradients


def test_the_convolutions_that_a_library_computes_are_found_with_their_inputs() -> None:
    backbone = build_backbone("3conv-2fc", (3, 32, 32), 2)
    found = convolutions(backbone, (10, 3, 32, 32))
    assert [(layer.in_channels, layer.out_channels, tuple(shape)) for layer, shape in found] == [
        (64, 64, (1, 64, 16, 16)),
        (64, 128, (1, 64, 8, 8)),
    ]
    assert len(convolutions(build_backbone("resnet18", (3, 64, 64), 2), (4, 3, 64, 64))) == 20
    assert convolutions(build_backbone("mlp", (7,), 2), (4, 7)) == []


def test_gradients_are_tried_at_the_size_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = build_backbone("small", (3, 28, 28), 2)
    shapes = []
    plain = F.conv2d

    def watched(x: torch.Tensor, *given: object) -> torch.Tensor:
        shapes.append((tuple(x.shape), x.dtype, x.requires_grad, x.is_contiguous(memory_format=torch.channels_last)))
        return plain(x, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "conv2d", watched)
    try_gradients(backbone, (6, 3, 28, 28))
    assert [shape for shape in shapes if shape[0][0] == 6] == [
        ((6, 3, 28, 28), torch.float32, True, True),
        ((6, 16, 14, 14), torch.float32, True, True),
        ((6, 32, 7, 7), torch.float32, True, True),
    ]


def test_trials_leave_the_network_and_random_numbers_alone() -> None:
    backbone = build_backbone("3conv-2fc", (3, 16, 16), 2)
    backbone.mixed = torch.bfloat16
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    state, layout = torch.get_rng_state(), backbone.layout.sizes
    try_gradients(backbone, (4, 3, 16, 16))
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    assert all(parameter.grad is None for parameter in backbone.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert (backbone.layout.sizes, backbone.mixed, backbone.training) == (layout, torch.bfloat16, True)
    assert not any(module._forward_pre_hooks for module in backbone.modules() if isinstance(module, nn.Conv2d))


def test_trials_are_waited_for_and_fail_in_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done = []

    def work(backbone: object, shape: object) -> None:
        time.sleep(0.1)
        done.append(shape)
        raise RuntimeError("no kernel")

    monkeypatch.setattr(trials, "try_gradients", work)
    somewhere = SimpleNamespace(mean=SimpleNamespace(is_cuda=True))
    with trials_beside(somewhere, (4, 3, 8, 8)):  # type: ignore[arg-type]
        assert not done
    assert done == [(4, 3, 8, 8)]
    with pytest.raises(ValueError, match="mine"), trials_beside(somewhere, (5, 3, 8, 8)):  # type: ignore[arg-type]
        raise ValueError("mine")
    assert done == [(4, 3, 8, 8), (5, 3, 8, 8)]
    with trials_beside(build_backbone("small", (3, 8, 8), 2), (6, 3, 8, 8)):  # no GPU, nothing to choose
        pass
    assert len(done) == 2
    assert capfd.readouterr() == ("", "")
