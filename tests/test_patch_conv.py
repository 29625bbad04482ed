"""Convolutions of pictures: the plain way and GPU kernels against PyTorch's convolution.

Run as a script, with TRITON_INTERPRET=1, this file checks the kernels on a CPU, in Triton's interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import graphmsda
from graphmsda import patch_conv as subject
from graphmsda.backbones import three_conv_two_fc
from graphmsda.patch_conv import PatchConv2d

gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
    reason="needs a CUDA GPU that computes in bfloat16",
)
# Images, channels, height, width, outputs, kernel: tiles that end within an image, more and fewer outputs than a tile's.
ODD = [(2, 3, 7, 9, 5, 5), (1, 1, 13, 11, 17, 3), (3, 2, 1, 1, 1, 7), (2, 4, 9, 17, 70, 5), (1, 3, 3, 5, 16, 1)]


def new(channels, outputs, kernel):
    torch.manual_seed(0)
    return PatchConv2d(channels, outputs, kernel, padding=kernel // 2, bias=False)


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(tensor):
    """Return numbers that bfloat16 holds, in double precision."""
    return tensor.detach().bfloat16().double()


def step(module, x, grad):
    """Return the output and the weight's gradient."""
    out = module(x)
    return out.detach(), torch.autograd.grad(out, module.weight, grad.to(out.dtype))[0]


def expected(module, x, grad):
    """Return both as computed in double precision from what bfloat16 holds of the inputs."""
    weight = rounded(module.weight).requires_grad_()
    out = F.conv2d(rounded(x), weight, padding=module.padding)
    return out.detach(), torch.autograd.grad(out, weight, rounded(grad))[0]


def assert_close(found, wanted, relative=1 / 128):
    """Within bfloat16's rounding of results; inputs were rounded already."""
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        allowed = relative * other.abs() + relative / 4 * other.square().mean().sqrt()
        assert (one.double() - other).abs().le(allowed).all(), float((one.double() - other).abs().max())


@pytest.mark.parametrize("size", ODD)
def test_on_a_cpu_it_is_the_plain_convolution(size):
    images, channels, height, width, outputs, kernel = size
    module = new(channels, outputs, kernel)
    plain = nn.Conv2d(channels, outputs, kernel, padding=kernel // 2, bias=False)
    plain.load_state_dict(module.state_dict())
    x, grad = draw(images, channels, height, width), draw(images, outputs, height, width, seed=2)
    for one, other in zip(step(module, x, grad), step(plain, x, grad), strict=True):
        assert torch.equal(one, other)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x), plain(x))


def test_the_digits_network_begins_with_it():
    body, _ = three_conv_two_fc((3, 32, 32), 0.5)
    assert [type(module) for module in body if isinstance(module, nn.Conv2d)] == [PatchConv2d, nn.Conv2d, nn.Conv2d]
    assert body[0].weight.shape == (64, 3, 5, 5)


def run(*command, **environment):
    path = {"PYTHONPATH": str(Path(graphmsda.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=os.environ | path | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_triton_is_imported_for_gpus_alone():
    pytest.importorskip("triton")
    code = "import sys, torch; before = 'triton' in sys.modules; from graphmsda.patch_conv import PatchConv2d; "
    code += "PatchConv2d(3, 4, 5)(torch.ones(1, 3, 8, 8)); print(before or 'triton' not in sys.modules)"
    assert run("-c", code).strip() == "True"


def takes_kernels(module, dtype=torch.float32, autocast=torch.bfloat16, shape=(2, 3, 8, 8), of_picture=False):
    """Whether kernels are chosen on a GPU, found by means of tensors without values."""
    with FakeTensorMode() as mode:
        mode.allow_non_fake_inputs = True
        parameters = {name: torch.empty_like(value, device="cuda") for name, value in module.named_parameters()}
        for value in parameters.values():
            value.requires_grad_()
        x = torch.empty(shape, dtype=dtype, device="cuda", requires_grad=of_picture)
        with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
            out = torch.func.functional_call(module, parameters, x)
        name = out.grad_fn.name()
        if "graphmsda" in name:
            assert out.is_contiguous(memory_format=torch.channels_last)
            assert out.dtype == torch.bfloat16
    return "graphmsda" in name


@pytest.fixture
def _kernels_usable():
    pytest.importorskip("triton")
    if subject._kernels() is None:
        pytest.skip("Triton finds no C compiler or an old GPU")


@pytest.mark.usefixtures("_kernels_usable")
def test_which_way_is_chosen_on_a_gpu(monkeypatch):
    module = new(3, 64, 5)
    assert takes_kernels(module)
    assert takes_kernels(module, dtype=torch.bfloat16)
    assert not takes_kernels(module, autocast=None)
    assert not takes_kernels(module, autocast=torch.float16)
    assert not takes_kernels(module, of_picture=True)
    assert not takes_kernels(module, shape=(0, 3, 8, 8))
    assert not takes_kernels(new(3, 64, 9))
    assert not takes_kernels(new(5, 64, 3), shape=(2, 5, 8, 8))
    for changed in (
        {"stride": 2},
        {"padding": 1},
        {"dilation": 2},
        {"bias": True},
        {"groups": 3},
        {"padding_mode": "reflect"},
        {"kernel_size": 4},
        {"kernel_size": (5, 3), "padding": (2, 1)},
    ):
        options = {"kernel_size": 5, "padding": 2, "bias": False} | changed
        assert not takes_kernels(PatchConv2d(3, 63, **options)), changed
    monkeypatch.setattr("graphmsda.patch_conv_triton.USABLE", False)
    assert not takes_kernels(module)


@pytest.mark.parametrize("found", [True, False])
def test_without_triton_a_gpu_takes_the_plain_way(monkeypatch, found):
    monkeypatch.setattr(subject, "TRITON", found)
    monkeypatch.delitem(sys.modules, "graphmsda.patch_conv_triton", raising=False)
    monkeypatch.delattr("graphmsda.patch_conv_triton", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)  # an installation that cannot be imported
    assert not takes_kernels(new(3, 64, 5))


def test_kernels_in_the_interpreter():
    pytest.importorskip("triton")
    run("-W", "ignore", __file__, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="", CC="cc")  # no compiler is called


def check_in_the_interpreter():
    PatchConv2d._fusible = lambda self, x: True
    module, x, grad = new(3, 6, 5), draw(2, 3, 9, 8), draw(2, 6, 9, 8, seed=2)
    # First of all, so that the kernels are imported while the program is traced, as in a training step.
    traced = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_close(step(traced, x, grad), expected(module, x, grad))

    from graphmsda import patch_conv_triton as kernels

    for kernel in (3, 5):
        picture = draw(2, 5 + kernel, 3 + kernel, 4)
        weight = draw(6, kernel, kernels.row_length(kernel, 4)).requires_grad_()
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(kernels.patch_conv, (picture, weight), test_utils=tests)
        arguments = (draw(2, 6, 6, 4), picture, kernel)
        torch.library.opcheck(kernels.patch_conv_weight_grad, arguments, test_utils=("test_schema", "test_faketensor"))

    for programs, each in ((264, 4), (3, 4), (1, 5)):  # sums of one tile, of several, and pixels of another length
        kernels.PROGRAMS, subject.EACH = programs, each
        for images, channels, height, width, outputs, kernel in ODD:
            module, x = new(channels, outputs, kernel), draw(images, channels, height, width)
            grad = draw(images, outputs, height, width, seed=2)  # its channels come first
            found = step(module, x, grad)
            assert found[0].is_contiguous(memory_format=torch.channels_last)
            assert found[0].dtype == torch.bfloat16
            assert_close(found, expected(module, x, grad))
            check_in_single_precision(kernels, module, x, grad)
    check_not_a_number(kernels)


def check_in_single_precision(kernels, module, x, grad):
    """Without rounding there is no doubt: every number is where it belongs."""
    kernel, each = module.kernel_size[0], x.shape[1]
    edge, row = kernel // 2, kernels.row_length(module.kernel_size[0], each)
    picture = F.pad(x, (edge,) * 4).permute(0, 2, 3, 1)  # not contiguous
    weight = module.weight.detach().permute(0, 2, 3, 1).flatten(2)
    weight = F.pad(weight, (0, row - kernel * each)).requires_grad_()
    out = kernels.patch_conv(picture, weight)
    slope = torch.autograd.grad(out, weight, grad)[0][..., : kernel * each]
    plain = F.conv2d(x, module.weight, padding=edge)
    wanted = torch.autograd.grad(plain, module.weight, grad)[0]
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=1e-5)
    slope = slope.unflatten(2, (kernel, each)).permute(0, 3, 1, 2)
    torch.testing.assert_close(slope, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def check_not_a_number(kernels):
    module, x = new(3, 4, 3), draw(2, 3, 8, 8)
    x[0, 1, 4, 6] = float("inf")
    finite = torch.ones(2, 4, 8, 8, dtype=torch.bool)
    finite[0, :, 3:6, 5:8] = False
    assert torch.equal(module(x).isfinite(), finite)  # what is not in a pixel's window does not reach it


def at_size(seed=0, shape=(640, 3, 32, 32), outputs=64, kernel=5):
    x, grad = draw(*shape, seed=seed).cuda(), draw(shape[0], outputs, *shape[2:], seed=seed + 1).cuda()
    grad = grad.bfloat16().contiguous(memory_format=torch.channels_last)
    return new(shape[1], outputs, kernel).cuda(), x.contiguous(memory_format=torch.channels_last), grad


def mixed(module):
    """Return the module, run in mixed precision."""

    def forward(x):
        with torch.autocast("cuda", torch.bfloat16):
            return module(x)

    forward.weight = module.weight
    return forward


def expected_on_gpu(module, x, grad):
    # Not in double precision, for which a GPU takes long, but without the short cuts of single precision either.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=True):
        weight = module.weight.detach().bfloat16().float().requires_grad_()
        out = F.conv2d(x.bfloat16().float(), weight, padding=module.padding)
        return out.detach().double(), torch.autograd.grad(out, weight, grad.float())[0].double()


@gpu
@pytest.mark.usefixtures("_kernels_usable")
def test_kernels_on_a_gpu():
    module, x, grad = at_size()
    found = step(mixed(module), x, grad)
    assert "graphmsda" in mixed(module)(x).grad_fn.name()
    assert_close(found, expected_on_gpu(module, x, grad))
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    again = step(mixed(module), x, grad)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    with torch.no_grad():
        assert torch.equal(mixed(module)(x), found[0])


@gpu
@pytest.mark.usefixtures("_kernels_usable")
@pytest.mark.parametrize("size", [*ODD, (70, 3, 28, 28, 64, 7), (3, 3, 224, 224, 96, 3), (1000, 3, 28, 28, 100, 5)])
def test_kernels_on_a_gpu_at_odd_sizes(size):
    images, channels, height, width, outputs, kernel = size
    module, x, grad = at_size(3, (images, channels, height, width), outputs, kernel)
    wanted = expected_on_gpu(module, x, grad)
    assert_close(step(mixed(module), x, grad), wanted)
    assert_close(step(mixed(module), x.contiguous(), grad.contiguous()), wanted)  # channels first


@gpu
@pytest.mark.usefixtures("_kernels_usable")
def test_kernels_in_a_compiled_step():
    torch.compiler.reset()
    module, x, grad = at_size()
    compiled = torch.compile(mixed(module), fullgraph=True, dynamic=False)
    compiled.weight = module.weight
    assert_close(step(compiled, x, grad), expected_on_gpu(module, x, grad))


@gpu
@pytest.mark.usefixtures("_kernels_usable")
def test_kernels_in_a_cuda_graph():
    module, x, grad = at_size()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(mixed(module), x, grad)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(mixed(module), x, grad)
    for seed in (5, 7):
        _, other, slope = at_size(seed)
        x.copy_(other)
        grad.copy_(slope)
        graph.replay()
        assert_close(found, expected_on_gpu(module, x, grad))


if __name__ == "__main__":
    check_in_the_interpreter()
