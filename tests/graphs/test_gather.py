"""Message passing: plain operations, chunks of queries and GPU kernels against the printed sum.

Run as a script, with TRITON_INTERPRET=1, this file checks the kernels on a CPU, in Triton's interpreter.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import graphmsda
from graphmsda.graphs import gather as subject
from graphmsda.graphs.gather import gather

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
NAMES = ("listen", "share", "heard", "shared", "message", "bias", "keep")
options = pytest.mark.parametrize(("share", "keep"), list(itertools.product([False, True], repeat=2)))
at_size = pytest.mark.parametrize(
    ("queries", "prototypes", "size"),
    [pytest.param(640, 50, 2048, id="digits-five"), pytest.param(96, 2070, 512, id="domainnet")],
)


def make_inputs(queries, prototypes, size, *, share, keep, seed=0, dtype=torch.float64, device="cpu"):
    """Multiples of 1/8, and a bias between the multiples of 1/64 that the rest of an activation is made of.

    Activations are then exact in either precision and none is at the kink of relu, where rounding decides the slope.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, low=-16, high=17):
        return torch.randint(low, high, shape, generator=generator).to(device, dtype) / 8

    return [
        draw(queries, prototypes, low=0, high=9),
        draw(queries, prototypes, low=0, high=9) if share else None,
        draw(queries, prototypes, low=0, high=9) if share else None,
        draw(prototypes, size),
        draw(queries, size),
        draw(size) + 1 / 128,
        draw(prototypes, size, low=0, high=2) * 16 if keep else None,
    ]


def with_gradients(function, inputs, grad):
    """Return the output and the gradients of all inputs but ``keep``, by name."""
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs[:6]]
    out = function(*leaves, inputs[6])
    present = [(name, leaf) for name, leaf in zip(NAMES, leaves, strict=False) if leaf is not None]
    gradients = torch.autograd.grad(out, [leaf for _, leaf in present], grad)
    return {"out": out.detach()} | {name: value for (name, _), value in zip(present, gradients, strict=True)}


def in_double(inputs):
    return [None if tensor is None else tensor.double() for tensor in inputs]


def expected(inputs, grad):
    return with_gradients(lambda *tensors: gather(*tensors, chunk=16), in_double(inputs), grad.double())


def assert_same(found, wanted, tolerance=1e-4):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name].double(),
            value,
            rtol=tolerance,
            atol=tolerance * float(value.abs().max()) if value.numel() else 0.0,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def spread(inputs, grad):
    """Return the same numbers, not contiguous."""
    *inputs, grad = (None if x is None else x.repeat_interleave(2, -1)[..., ::2] for x in (*inputs, grad))
    return inputs, grad


def printed_sum(listen, share, heard, shared, message, bias, keep):
    heard = listen if heard is None else heard
    out = torch.zeros_like(message)
    for q, v in itertools.product(range(len(message)), range(len(shared))):
        own = shared[v] if share is None else share[q, v] * shared[v]
        said = torch.relu(own + heard[q, v] * message[q] + bias)
        out[q] += listen[q, v] * (said if keep is None else keep[v] * said)
    return out


@options
@pytest.mark.parametrize("chunk", [None, 0, 1, 2, 9])
def test_the_sum_is_as_printed(share, keep, chunk):
    inputs = make_inputs(5, 4, 3, share=share, keep=keep)
    torch.testing.assert_close(gather(*inputs, chunk), printed_sum(*inputs))


@options
@pytest.mark.parametrize("chunk", [0, 2])
def test_gradients(share, keep, chunk):
    inputs = make_inputs(3, 4, 2, share=share, keep=keep)
    leaves = [None if tensor is None else tensor.requires_grad_() for tensor in inputs[:6]]
    assert torch.autograd.gradcheck(lambda *tensors: gather(*tensors, inputs[6], chunk), leaves)


@pytest.mark.parametrize("chunk", [None, 0, 2])
def test_no_queries(chunk):
    inputs = make_inputs(0, 4, 3, share=True, keep=True)
    found = with_gradients(lambda *tensors: gather(*tensors, chunk), inputs, torch.zeros(0, 3, dtype=torch.float64))
    assert found["out"].shape == (0, 3)
    assert found["shared"].shape == (4, 3)
    assert not found["shared"].any()
    assert not found["bias"].any()


def run(*command, **environment):
    path = {"PYTHONPATH": str(Path(graphmsda.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=os.environ | path | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_triton_is_imported_for_gpus_alone():
    pytest.importorskip("triton")
    code = "import sys, torch; before = 'triton' in sys.modules; from graphmsda.graphs import relation; "
    code += "relation.gather(*map(torch.ones, [(2, 3)] * 3 + [(3, 4), (2, 4), (4,), (3, 4)])); "
    code += "print(before or 'triton' not in sys.modules)"
    assert run("-c", code).strip() == "True"


def kind_of_gather(dtype, chunk=None):
    """Return the name of the operation chosen on a GPU, by means of tensors without values."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype, device="cuda") for shape in [(2, 3)] * 3 + [(3, 4), (2, 4), (4,)]]
        inputs[4].requires_grad_()
        return type(gather(*inputs, None, chunk).grad_fn).__name__


@pytest.mark.usefixtures("imaginary_gpu")
def test_which_way_is_chosen_on_a_gpu(monkeypatch):
    pytest.importorskip("triton")
    if subject._kernels() is None:
        pytest.skip("Triton finds no C compiler or an old GPU")
    assert "graphmsda" in kind_of_gather(torch.float32)
    assert "_Gather" in kind_of_gather(torch.float32, chunk=2)
    assert "Squeeze" in kind_of_gather(torch.float32, chunk=0)
    assert "_Gather" in kind_of_gather(torch.float64)
    monkeypatch.setattr("graphmsda.graphs.gather_triton.USABLE", False)
    assert "_Gather" in kind_of_gather(torch.float32)


@pytest.mark.usefixtures("imaginary_gpu")
@pytest.mark.parametrize("found", [True, False])
def test_without_triton_a_gpu_takes_chunks(monkeypatch, found):
    monkeypatch.setattr(subject, "TRITON", found)
    monkeypatch.delitem(sys.modules, "graphmsda.graphs.gather_triton", raising=False)
    monkeypatch.delattr("graphmsda.graphs.gather_triton", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)  # an installation that cannot be imported
    assert "_Gather" in kind_of_gather(torch.float32)


@pytest.mark.usefixtures("triton_interpreter")
def test_kernels_in_the_interpreter():
    run("-W", "ignore", __file__, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="", CC="cc")  # no compiler is called


def check_in_the_interpreter():
    # First of all, so that the kernels are imported while the program is traced, as in a training step.
    @torch.compile(fullgraph=True, backend="aot_eager")
    def traced(*tensors):
        return subject._kernels().fused_gather(*tensors)

    inputs = make_inputs(3, 2, 5, share=True, keep=True, dtype=torch.float32)
    grad = torch.ones(()).expand(3, 5)  # not contiguous
    assert_same(with_gradients(traced, inputs, grad), expected(inputs, grad), 1e-6)

    from graphmsda.graphs import gather_triton

    leaves = [tensor.requires_grad_() for tensor in inputs[:6]]
    torch.library.opcheck(gather_triton.fused_gather, (*leaves, inputs[6]))
    for queries, prototypes, size, shortest in [
        (0, 2, 3, 1),
        (1, 1, 1, 1),
        (18, 3, 7, 64),
        (3, 17, 66, 9),
        (5, 66, 3, 2),
    ]:
        gather_triton.SHORTEST = shortest  # so that short sums come in parts, too
        for share, keep in itertools.product([False, True], repeat=2):
            inputs = make_inputs(queries, prototypes, size, share=share, keep=keep, dtype=torch.float32)
            grad = make_inputs(queries, 1, size, share=False, keep=False, seed=1, dtype=torch.float32)[4]
            assert_same(with_gradients(gather_triton.fused_gather, inputs, grad), expected(inputs, grad), 1e-6)
    found = with_gradients(gather_triton.fused_gather, *spread(inputs, grad))
    assert_same(found, expected(inputs, grad), 1e-6)
    inputs[4][0, 0] = float("nan")
    assert gather_triton.fused_gather(*inputs)[0, 0].isnan()


def make_on_gpu(queries, prototypes, size, share, keep, seed=0):
    inputs = make_inputs(
        queries, prototypes, size, share=share, keep=keep, seed=seed, dtype=torch.float32, device="cuda"
    )
    return inputs, torch.randn(queries, size, generator=torch.Generator().manual_seed(seed)).cuda()


@gpu
@options
@at_size
def test_kernels_on_a_gpu(queries, prototypes, size, share, keep):
    inputs, grad = make_on_gpu(queries, prototypes, size, share, keep)
    wanted = expected(inputs, grad)
    found = with_gradients(gather, inputs, grad)
    assert_same(found, wanted)
    again = with_gradients(gather, inputs, grad)
    assert all(torch.equal(found[name], again[name]) for name in found)


@gpu
@options
@pytest.mark.parametrize(("queries", "prototypes", "size"), [(1, 1, 1), (37, 70, 129), (300, 5, 67), (0, 3, 4)])
def test_kernels_on_a_gpu_at_odd_sizes(queries, prototypes, size, share, keep):
    inputs, grad = make_on_gpu(queries, prototypes, size, share, keep)
    wanted = expected(inputs, grad)
    assert_same(with_gradients(gather, inputs, grad), wanted)
    assert_same(with_gradients(gather, *spread(inputs, grad)), wanted)


@gpu
@at_size
def test_kernels_hold_no_activations(queries, prototypes, size):
    inputs, grad = make_on_gpu(queries, prototypes, size, True, True)
    with_gradients(gather, inputs, grad)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with_gradients(gather, inputs, grad)
    assert torch.cuda.max_memory_allocated() - before < queries * prototypes * size * 4 / 3


@gpu
@options
@at_size
def test_kernels_in_a_compiled_step(queries, prototypes, size, share, keep):
    torch.compiler.reset()
    inputs, grad = make_on_gpu(queries, prototypes, size, share, keep)
    found = with_gradients(torch.compile(gather, fullgraph=True, dynamic=False), inputs, grad)
    assert_same(found, expected(inputs, grad))


@gpu
@options
def test_kernels_in_a_cuda_graph(share, keep):
    inputs, grad = make_on_gpu(640, 50, 2048, share, keep)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        with_gradients(gather, inputs, grad)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = with_gradients(gather, inputs, grad)
    for seed in (1, 2):
        others, other = make_on_gpu(640, 50, 2048, share, keep, seed)
        for static, new in zip([*inputs, grad], [*others, other], strict=True):
            if static is not None:
                static.copy_(new)
        graph.replay()
        assert_same(found, expected(others, other))


if __name__ == "__main__":
    check_in_the_interpreter()
