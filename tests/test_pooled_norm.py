"""Batch norm, ReLU and max-pooling in one: plain operations and GPU kernels against the three modules.

Run as a script, with TRITON_INTERPRET=1, this file checks the kernels on a CPU, in Triton's interpreter.
"""

import copy
import itertools
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
from graphmsda import pooled_norm as subject
from graphmsda.backbones import three_conv_two_fc
from graphmsda.norm import DomainBatchNorm, Layout, _Normalise, convert_norms
from graphmsda.pooled_norm import PooledNorm, pool_norms

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
both_types = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
at_size = pytest.mark.parametrize(
    "shape",
    [
        pytest.param((5, 128, 64, 32, 32), id="digits-five"),
        pytest.param((5, 128, 64, 16, 16), id="digits-five-second"),
        pytest.param((4, 16, 64, 112, 112), id="resnet"),
    ],
)
ODD = [(2, 2, 5, 7, 6), (1, 2, 33, 13, 10), (3, 2, 70, 1, 5), (2, 1, 3, 33, 40), (1, 2, 1, 1, 1)]
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 1 / 128}


def lay(layout, sizes, domains=None):
    layout.sizes = layout.totals = sizes
    layout.domains = tuple(range(len(sizes))) if domains is None else domains


def separate(norm):
    """Return the same norm, followed by modules for the rest."""
    first = DomainBatchNorm(len(norm.weight), len(norm.count), norm.layout, eps=norm.eps, momentum=norm.momentum)
    first.to(norm.weight.device, norm.weight.dtype).load_state_dict(norm.state_dict())
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))


def tied(normed):
    """Return windows with several equal maxima, of which modules choose the first, the kernel the larger pixel."""
    padded = nn.functional.pad(normed.float(), (1, 1, 1, 1), value=-torch.inf)
    windows = padded.unfold(2, 3, 2).unfold(3, 3, 2).flatten(4)
    return (windows == windows.amax(4, keepdim=True)).sum(4) > 1


def new(channels, domains, sizes):
    """Return a norm with weights of both signs."""
    norm = PooledNorm(channels, domains, Layout(), eps=1e-3, momentum=0.2)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(channels, generator=generator))
        norm.bias.copy_(torch.randn(channels, generator=generator))
    lay(norm.layout, sizes)
    return norm


def coarse(*shape, low, high, seed, unit=4):
    """Multiples of a power of 2, so that many are equal and arithmetic is exact in any precision."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)) / unit


def assert_same_step(found, wanted, x, grad, tolerance):
    """Compare output, gradients and state after one forward and backward pass."""
    leaves = [x.clone(memory_format=torch.preserve_format).requires_grad_() for _ in range(2)]
    close = {"rtol": tolerance, "atol": tolerance}
    outputs = [module(leaf) for module, leaf in zip((found, wanted), leaves, strict=True)]
    torch.testing.assert_close(outputs[0], outputs[1], **close)
    if not outputs[1].requires_grad:
        return
    for output in outputs:
        output.backward(grad)
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad, **close)
    for (name, one), two in zip(found.named_parameters(), wanted.parameters(), strict=True):
        scale = max(1.0, float(two.grad.abs().max()))
        torch.testing.assert_close(one.grad, two.grad, rtol=tolerance, atol=tolerance * scale, msg=name)
    for (name, one), two in zip(found.named_buffers(), wanted.buffers(), strict=True):
        torch.testing.assert_close(one, two, **close, msg=name)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 2, 1), (6, 0)], ids=["even", "uneven", "empty"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_operations_equal_separate_modules(training, sizes, dtype):
    norm = new(3, 3, sizes).to(dtype)
    norm(torch.randn(sum(sizes), 3, 7, 6, dtype=dtype))
    norm.train(training)
    wanted = separate(norm).train(training)
    x = torch.randn(sum(sizes), 3, 7, 6, dtype=dtype)
    assert_same_step(norm, wanted, x, torch.randn(sum(sizes), 3, 4, 3, dtype=dtype), 0)


def small_network():
    return three_conv_two_fc((3, 16, 16), 0.5)[0]


def resnet():
    from torchvision.models import resnet18

    return resnet18(weights=None)


def densenet():
    from torchvision.models import DenseNet

    return DenseNet(4, (1, 1), 8)


@pytest.mark.parametrize(
    ("make", "names"),
    [(small_network, {"1", "5"}), (resnet, {"bn1"}), (densenet, {"features.norm0"})],
    ids=["3conv-2fc", "resnet", "densenet"],
)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_networks_keep_their_names_and_outputs(make, names, training):
    torch.manual_seed(0)
    layout = Layout()
    apart = convert_norms(make(), 3, layout)
    for module in apart.modules():
        if isinstance(module, DomainBatchNorm):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.initial_mean)
    together = copy.deepcopy(apart)
    norms = [module for module in together.modules() if isinstance(module, DomainBatchNorm)]
    for norm in norms:
        norm.layout = layout  # which is what a copy does not share
    parameters = dict(together.named_parameters())
    together.train(training)
    assert pool_norms(together) is together
    pooled = {name: module for name, module in together.named_modules() if isinstance(module, PooledNorm)}
    assert pooled.keys() == names
    assert all(norm.layout is layout and norm.training == training for norm in pooled.values())
    assert sum(isinstance(module, nn.MaxPool2d) for module in together.modules()) == 0
    state = apart.state_dict()
    assert list(together.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in together.state_dict().items())
    assert all(value is parameters[name] for name, value in together.named_parameters())
    lay(layout, (3, 2), (0, 2))
    x = torch.randn(5, 3, 16, 16)
    outputs = []
    for network in (apart, together):
        torch.manual_seed(1)  # of dropout
        outputs.append(network.train(training)(x))
    assert torch.equal(outputs[0], outputs[1])
    assert all(torch.equal(value, apart.state_dict()[name]) for name, value in together.state_dict().items())


class Twice(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + self[0](x)[..., ::2, ::2]


@pytest.mark.parametrize(
    "others",
    [
        (nn.ReLU(), nn.MaxPool2d(2)),
        (nn.ReLU(), nn.MaxPool2d(3)),
        (nn.ReLU(), nn.MaxPool2d(3, 2)),
        (nn.ReLU(), nn.MaxPool2d((3, 2), 2, padding=1)),
        (nn.ReLU(), nn.MaxPool2d(3, 2, padding=1, dilation=2)),
        (nn.ReLU(), nn.MaxPool2d(3, 2, padding=1, ceil_mode=True)),
        (nn.ReLU(), nn.MaxPool2d(3, 2, padding=1, return_indices=True)),
        (nn.ReLU(), nn.AvgPool2d(3, 2, padding=1)),
        (nn.LeakyReLU(), nn.MaxPool2d(3, 2, padding=1)),
        (nn.MaxPool2d(3, 2, padding=1), nn.ReLU()),
        (nn.ReLU(),),
    ],
    ids=repr,
)
def test_what_is_not_the_same_is_left_alone(others):
    network = nn.Sequential(DomainBatchNorm(3, 2, Layout()), *others)
    before = list(network)
    assert list(pool_norms(network)) == before


def test_a_sequence_with_a_way_of_its_own_is_left_alone():
    network = Twice(DomainBatchNorm(3, 2, Layout()), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    before = list(network)
    assert list(pool_norms(network)) == before


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((3, 3), (2, 2), (1, 1), (1, 1))], ids=repr)
def test_ways_to_write_the_same_pooling(pool):
    network = pool_norms(nn.Sequential(DomainBatchNorm(3, 2, Layout()), nn.ReLU(inplace=True), pool))
    assert [type(module) for module in network] == [PooledNorm, nn.Identity, nn.Identity]


def run(*command, **environment):
    path = {"PYTHONPATH": str(Path(graphmsda.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=os.environ | path | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_triton_is_imported_for_gpus_alone():
    pytest.importorskip("triton")
    code = "import sys, torch; before = 'triton' in sys.modules; "
    code += "from graphmsda.backbones import build_backbone; "
    code += "build_backbone('3conv-2fc', (3, 8, 8), 2)(torch.zeros(4, 3, 8, 8), (2, 2), (0, 1)).sum().backward(); "
    code += "print(before or 'triton' not in sys.modules)"
    assert run("-c", code).strip() == "True"


def operation(dtype=torch.bfloat16, *, sizes=(2, 2), training=True, channels_last=True, wide=torch.float32):
    """Return the name of the last operation chosen on a GPU, by means of tensors without values."""
    with FakeTensorMode(), torch.device("cuda"):
        norm = PooledNorm(8, 3, Layout()).train(training)
        norm.weight, norm.bias = (nn.Parameter(values.to(wide)) for values in (norm.weight, norm.bias))
        norm.running_mean, norm.running_var = norm.running_mean.to(wide), norm.running_var.to(wide)
        lay(norm.layout, sizes)
        x = torch.empty(sum(sizes), 8, 6, 6, dtype=dtype, requires_grad=True)
        return type(norm(x.contiguous(memory_format=torch.channels_last) if channels_last else x).grad_fn).__name__


@pytest.mark.usefixtures("imaginary_gpu")
def test_which_way_is_chosen_on_a_gpu(monkeypatch):
    pytest.importorskip("triton")
    if subject._kernels() is None:
        pytest.skip("Triton finds no C compiler or an old GPU")
    assert "graphmsda" in operation()
    assert "graphmsda" in operation(torch.float32)
    assert "MaxPool" in operation(torch.float16)
    assert "MaxPool" in operation(torch.float64, wide=torch.float64)
    assert "MaxPool" in operation(wide=torch.bfloat16)
    assert "MaxPool" in operation(sizes=(2, 3))
    assert "MaxPool" in operation(training=False)
    assert "MaxPool" in operation(channels_last=False)
    monkeypatch.setattr("graphmsda.pooled_norm.LARGEST", 8 * 6 * 6)
    assert "MaxPool" in operation()
    monkeypatch.undo()
    monkeypatch.setattr("graphmsda.pooled_norm_triton.USABLE", False)
    assert "MaxPool" in operation()
    monkeypatch.undo()
    monkeypatch.setattr("graphmsda.pooled_norm.TRITON", False)
    assert "MaxPool" in operation()


@pytest.mark.usefixtures("imaginary_gpu")
def test_an_installation_of_triton_that_cannot_be_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "graphmsda.pooled_norm_triton", raising=False)
    monkeypatch.delattr("graphmsda.pooled_norm_triton", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "MaxPool" in operation()


def make_inputs(shape, dtype, device="cpu", seed=0):
    """Return x, mean, inverse, weight, bias and a gradient: with ties, windows without a winner, weights of both signs.

    Weights are not 0, where all values would be equal and which x wins is another question.
    """
    domains, images, channels, height, width = shape
    x = coarse(domains * images, channels, height, width, low=-8, high=9, seed=seed)
    inputs = [
        x.to(dtype).contiguous(memory_format=torch.channels_last),
        coarse(domains, channels, low=-2, high=3, seed=seed + 1),
        2.0 ** coarse(domains, channels, low=-1, high=2, seed=seed + 2, unit=1),
        coarse(channels, low=-4, high=4, seed=seed + 3, unit=2) + 0.25,
        coarse(channels, low=-6, high=4, seed=seed + 4),
    ]
    grad = coarse(len(x), channels, (height + 1) // 2, (width + 1) // 2, low=-4, high=5, seed=seed + 5).to(dtype)
    return [tensor.to(device) for tensor in inputs], grad.to(device)


def with_gradients(function, inputs, grad):
    x, mean, inverse, weight, bias = inputs
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    output = function(leaves[0], mean, inverse, *leaves[1:])
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def expected(inputs, grad):
    """Return output and gradients in float64, with values rounded where the three modules would store them."""

    def compute(x, mean, inverse, weight, bias):
        y = _Normalise.apply(x.view(len(mean), -1, *x.shape[1:]), mean, inverse, weight, bias).flatten(0, 1)
        y = y + (y.detach().to(inputs[0].dtype).double() - y.detach())
        return F.max_pool2d(F.relu(y), 3, 2, 1)

    return with_gradients(compute, [tensor.double().contiguous() for tensor in inputs], grad.double())


def assert_as_expected(found, wanted, dtype):
    names = ("output", "x", "weight", "bias")
    for name, one, two in zip(names, found, wanted, strict=True):
        exact = name == "output"
        largest = max(1.0, float(two.abs().max()))
        precision = 1e-5 if name in ("weight", "bias") else CLOSE[dtype]
        tolerance = {"rtol": 0 if exact else precision, "atol": 0 if exact else 1e-5 * largest}
        torch.testing.assert_close(
            one.double(), two, **tolerance, msg=lambda text, name=name: f"{name}: {text}", check_stride=False
        )
    assert found[0].dtype == found[1].dtype == dtype
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in found[:2])


def fused(*inputs):
    return subject._kernels().pooled_norm(*inputs)[0]


@pytest.mark.usefixtures("triton_interpreter")
def test_kernels_in_the_interpreter():
    run("-W", "ignore", __file__, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


def check_in_the_interpreter():
    PooledNorm._fusible = lambda self, x: self.training
    norm = new(5, 3, (3, 3))
    x = coarse(6, 5, 7, 6, low=-16, high=17, seed=3, unit=8).contiguous(memory_format=torch.channels_last)
    grad = torch.randn(6, 5, 4, 3)
    # First of all, so that the kernels are imported while the program is traced, as in a training step.
    together = torch.compile(copy.deepcopy(norm), fullgraph=True, backend="aot_eager")
    assert_same_step(together, separate(norm), x, grad, 1e-5)
    lay(norm.layout, (3, 3), (1, 2))
    assert_same_step(copy.deepcopy(norm), separate(norm), x, grad, 1e-5)

    from graphmsda import pooled_norm_triton as kernels

    inputs, grad = make_inputs((2, 2, 3, 5, 4), torch.float32)
    for position in (0, 3, 4):
        inputs[position].requires_grad_()
    torch.library.opcheck(
        kernels.pooled_norm,
        tuple(inputs),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    _, codes, winners = kernels.pooled_norm(*inputs)
    x, mean, inverse, weight = (tensor.detach() for tensor in inputs[:4])
    checks = {"test_utils": ("test_schema", "test_faketensor")}
    torch.library.opcheck(kernels.pooled_norm_sums, (grad, codes, winners.detach(), mean, inverse), **checks)
    sums = kernels.pooled_norm_sums(grad, codes, winners.detach(), mean, inverse).sum(2)
    torch.library.opcheck(kernels.pooled_norm_spread, (grad, codes, x, mean, inverse, weight, sums), **checks)
    kernels.PART = 32  # so that short sums come in parts, too
    for shape, dtype in zip(ODD, itertools.cycle((torch.float32, torch.bfloat16)), strict=False):
        inputs, grad = make_inputs(shape, dtype)
        assert_as_expected(with_gradients(fused, inputs, grad), expected(inputs, grad), dtype)
    check_codes(kernels)
    check_strides()
    check_not_a_number()


def check_codes(kernels):
    inputs, _ = make_inputs((2, 2, 5, 7, 6), torch.float32)
    _, codes, winners = kernels.pooled_norm(*inputs)
    x, mean, inverse, weight, bias = inputs
    y = F.relu(_Normalise.apply(x.view(2, -1, *x.shape[1:]), mean, inverse, weight, bias).flatten(0, 1))
    largest, place = F.max_pool2d(y, 3, 2, 1, return_indices=True)
    row, column = place // 6 - 2 * torch.arange(4)[:, None] + 1, place % 6 - 2 * torch.arange(3) + 1
    assert (codes == 9).any()
    assert torch.equal(codes.long(), torch.where(largest > 0, 3 * row + column, 9))
    at_place = x.flatten(2).gather(2, place.flatten(2)).view_as(winners)
    assert torch.equal(winners[largest > 0], at_place[largest > 0])


def check_strides():
    """Neither x nor the gradient need be channels last, though results are."""
    inputs, grad = make_inputs((2, 2, 5, 7, 6), torch.float32)
    wanted = expected(inputs, grad)
    inputs[0] = inputs[0].contiguous()
    inputs[1] = inputs[1].T.contiguous().T
    assert_as_expected(
        with_gradients(fused, inputs, grad.transpose(0, 3).contiguous().transpose(0, 3)), wanted, torch.float32
    )
    assert_as_expected(
        with_gradients(fused, inputs, torch.ones(()).expand_as(grad)),
        expected(inputs, torch.ones_like(grad)),
        torch.float32,
    )


def check_not_a_number():
    for dtype in (torch.float32, torch.bfloat16):
        inputs, grad = make_inputs((1, 2, 3, 5, 4), dtype)
        inputs[0][0, 1, 2, 2] = inputs[1][0, 1] = float("nan")  # one value, and so the mean
        output, slope, weight, _ = with_gradients(fused, inputs, grad)
        wanted = expected(inputs, grad)[0]
        assert wanted.isnan().any()
        torch.testing.assert_close(output.double(), wanted, rtol=0, atol=0, equal_nan=True, check_stride=False)
        assert slope[:, 1].isnan().all()
        assert slope[:, 0].isfinite().all()
        assert weight.isnan().tolist() == [False, True, False]


@gpu
@both_types
@at_size
def test_kernels_on_a_gpu(shape, dtype):
    inputs, grad = make_inputs(shape, dtype, "cuda")
    found = with_gradients(fused, inputs, grad)
    assert_as_expected(found, expected(inputs, grad), dtype)
    again = with_gradients(fused, inputs, grad)
    assert all(torch.equal(one, two) for one, two in zip(found, again, strict=True))


@gpu
@both_types
@pytest.mark.parametrize("shape", [*ODD, (3, 4, 256, 9, 17), (2, 2, 2048, 3, 4)], ids=str)
def test_kernels_on_a_gpu_at_odd_sizes(shape, dtype):
    inputs, grad = make_inputs(shape, dtype, "cuda")
    assert_as_expected(with_gradients(fused, inputs, grad), expected(inputs, grad), dtype)


@gpu
def test_kernels_on_a_gpu_with_more_numbers_than_32_bits_count():
    if torch.cuda.get_device_properties(0).total_memory < 60 * 2**30:
        pytest.skip("needs a GPU with 60 GiB")
    small, grad = make_inputs((1, 4, 64, 112, 112), torch.bfloat16, "cuda")
    wanted = with_gradients(fused, small, grad)
    copies = 2**31 // small[0].numel() + 1
    large = [small[0].repeat(copies, 1, 1, 1).contiguous(memory_format=torch.channels_last), *small[1:]]
    found = with_gradients(fused, large, grad.repeat(copies, 1, 1, 1))
    assert torch.equal(found[0][-4:], wanted[0])
    torch.testing.assert_close(found[1][-4:], wanted[1], rtol=1 / 64, atol=1e-3)


@gpu
@both_types
@at_size
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_step_on_a_gpu(shape, dtype, compiled):
    domains, images, channels, height, width = shape
    norm = new(channels, domains, (images,) * domains).cuda()
    wanted = separate(norm)
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(domains * images, channels, height, width, device="cuda", generator=generator).to(dtype) + 1
    x = x.contiguous(memory_format=torch.channels_last)
    assert "graphmsda" in type(copy.deepcopy(norm)(x.clone().requires_grad_()).grad_fn).__name__
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [torch.compile(norm, fullgraph=True)(leaves[0]) if compiled else norm(leaves[0]), wanted(leaves[1])]
    grad = torch.randn(outputs[1].shape, device="cuda", generator=generator).to(dtype)
    grad[tied(copy.deepcopy(wanted[0])(x).detach())] = 0
    for output in outputs:
        output.backward(grad)
    torch.testing.assert_close(*outputs, rtol=CLOSE[dtype], atol=CLOSE[dtype])
    for (name, one), two in zip(norm.named_buffers(), wanted.buffers(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4, msg=name)
    # Statistics that differ by rounding may let the other one of two close values win: hence no bound for each pixel.
    for one, two in zip((leaves[0], *norm.parameters()), (leaves[1], *wanted.parameters()), strict=True):
        difference = (one.grad.double() - two.grad.double()).norm() / two.grad.double().norm()
        assert difference < (0.01 if dtype == torch.float32 else 0.03)


@gpu
@both_types
def test_a_step_in_a_cuda_graph(dtype):
    norm = new(64, 5, (16,) * 5).cuda()
    plain = copy.deepcopy(norm)

    def step(norm, x, grad):
        leaf = x.detach().requires_grad_()
        output = norm(leaf)
        return [output.detach(), *torch.autograd.grad(output, [leaf, norm.weight, norm.bias], grad)]

    def batch(seed):
        x, grad = (coarse(80, 64, side, side, low=-16, high=17, seed=seed).to("cuda", dtype) for side in (32, 16))
        return x.contiguous(memory_format=torch.channels_last), grad

    x, grad = batch(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(norm, x, grad)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(norm, x, grad)
    step(plain, x, grad)
    for seed in (1, 2):
        for static, fresh in zip((x, grad), batch(seed), strict=True):
            static.copy_(fresh)
        graph.replay()
        wanted = step(plain, x, grad)
        assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    for (name, one), two in zip(norm.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, two, msg=name)


if __name__ == "__main__":
    check_in_the_interpreter()
