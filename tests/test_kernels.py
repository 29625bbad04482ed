"""GPU kernels are compiled for a GPU that need not be there: Triton's interpreter takes what its compiler refuses."""

import inspect

import pytest

triton = pytest.importorskip("triton")

from graphmsda import patch_conv_triton, pooled_norm_kernels  # noqa: E402
from graphmsda.graphs import gather_triton  # noqa: E402

TILE = {"WINDOWS": 16, "CHANNELS": 64}
SUMS = {"ROWS": gather_triton.ROWS, "COLUMNS": gather_triton.COLUMNS}
PATCH = {"HEIGHT": 32, "WIDTH": 32, "EACH": 3, "RUN": 16, "OUT": 64, "PIXELS": patch_conv_triton.PIXELS}
FLOATS = {"mean", "inverse", "weight", "bias", "total", "along"}  # in float32 whatever the pictures are in
COUNTS = {"images", "height", "width", "channels", "windows", "count", "image", "down"}
COUNTS |= {"queries", "prototypes", "size", "part"}


def compile_for_gpu(kernel, picture, constants):
    """Compile a kernel to machine code of an H100 or H200; names tell whether an argument is a pointer or a count."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if "constexprs" not in inspect.signature(ASTSource.__init__).parameters:
        pytest.skip(f"Triton {triton.__version__} is compiled for in another way")

    def kind(name):
        if name in constants:
            return "constexpr"
        if name in COUNTS:
            return "i32"
        return "*i8" if name == "codes" else "*fp32" if name in FLOATS else f"*{picture}"

    signature = {name: kind(name) for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(ASTSource(kernel, signature, places), target=GPUTarget("cuda", 90, 32))
    return compiled.asm["cubin"]


@pytest.mark.parametrize("picture", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["_pool", "_sum_over_windows", "_spread"])
def test_pooled_norm(name, picture):
    constants = TILE | ({"PART": 256} if name == "_sum_over_windows" else {})
    assert compile_for_gpu(getattr(pooled_norm_kernels, name), picture, constants)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", ["_sum_over_prototypes", "_sum_over_queries", "_sum_over_columns"])
def test_gather(name, apart):
    constants = SUMS | {"APART": apart, "KEEP": apart} | ({"BACKWARD": apart} if name.endswith("prototypes") else {})
    constants |= {} if apart else {"share": None, "heard": None, "keep": None}
    assert compile_for_gpu(getattr(gather_triton, name), "fp32", constants)


@pytest.mark.parametrize("size", patch_conv_triton.SIZES)
@pytest.mark.parametrize("name", ["_convolve", "_sum_over_pixels"])
def test_convolution(name, size):
    assert compile_for_gpu(getattr(patch_conv_triton, name), "bf16", PATCH | {"SIZE": size})


def test_what_the_compiler_refuses_is_found():
    import triton.language as tl

    @triton.jit
    def too_large(codes):
        tl.store(codes, (tl.load(codes).to(tl.int32) & 0x7FFFFFFF00000000).to(tl.int8))

    with pytest.raises(triton.CompilationError):
        compile_for_gpu(too_large, "bf16", {})


def test_all_kernels_are_here():
    modules = (pooled_norm_kernels, gather_triton, patch_conv_triton)
    kernels = {name for module in modules for name, value in vars(module).items() if hasattr(value, "arg_names")}
    helpers = {"_windows", "_places", "_key", "_order", "_begin"}
    mine = {"_pool", "_sum_over_windows", "_spread", "_convolve", "_sum_over_pixels"}
    assert kernels - helpers == mine | {"_sum_over_prototypes", "_sum_over_queries", "_sum_over_columns"}
