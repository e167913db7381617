"""torch tensors, and the registered torch ops."""

import numpy as np
import octofold
import pytest
from octofold._core.frameworks import column_stride, row_stride
from octofold._core.library import library
from octofold._core.ops import quick_scale_shape

from tests.python.casting import GRANULARITIES
from tests.python.own_process import python

torch = pytest.importorskip("torch")
FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
TorchDispatchMode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode

from octofold._core.torch import aligned_rows, columns_first  # noqa: E402


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def codes(tensor):
    return tensor.view(torch.uint8).numpy()


def test_gemm_in_place():
    a, b = octofold.quantize(random(5, 300)), octofold.quantize(random(7, 300))
    out = random(5, 7)
    version, before = out._version, out.clone()
    assert octofold.gemm(a, b, out=out, c=out) is out
    assert torch.equal(out, octofold.gemm(a, b, c=before, out_dtype=torch.float32))
    assert out._version > version  # autograd sees the mutation


def test_in_place_op_takes_out_once():
    """Its schema promises to mutate nothing but `out`: so c = out may not go in as c too."""
    calls = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            calls.append((op, args))
            return op(*args, **(kwargs or {}))

    a, out = octofold.quantize(random(5, 300)), random(5, 5)
    with Recorder():
        octofold.gemm(a, a, out=out, c=out)
    (op, args), *others = calls
    assert op is torch.ops.octofold.gemm.out
    assert not others
    assert sum(argument is out for argument in args) == 1


def test_refusals():
    x = random(3, 300)
    with pytest.raises(octofold.InvalidArgumentError, match=r"'x': .*DLPack"):
        octofold.quantize(x.to_sparse())
    with pytest.raises(octofold.InvalidArgumentError, match="'b': expected a torch tensor as is"):
        octofold.gemm(octofold.quantize(x), octofold.quantize(x.numpy()))


def test_has_no_gradient():
    """And says so, instead of a wrong one."""
    x = random(3, 300).requires_grad_()
    cast = octofold.quantize(x)
    for result in (cast.dequantize(), octofold.gemm(cast, cast, out_dtype="float32")):
        with pytest.raises(RuntimeError, match=r"octofold\.(dequantize|gemm) has no gradient"):
            result.sum().backward()
    with torch.no_grad():
        assert not octofold.ops.convert_dtype(x, "e4m3").requires_grad


def layer(x, w, bias):
    activations = octofold.quantize(x)
    weights = octofold.quantize(w, octofold.Format(torch.float8_e5m2, "128x128", power_of_two=True))
    y = octofold.gemm(activations, weights, bias=bias)
    octofold.gemm(activations, weights, out=y, c=y)
    return (
        y,
        activations.dequantize(torch.bfloat16),
        octofold.ops.convert_dtype(y, "e4m3"),
        activations,
    )


def test_ops_are_called_only_where_torch_has_to_know(monkeypatch):
    """The way through torch's dispatcher takes longer than a small product."""

    def refuse(*arguments):
        raise AssertionError("an op was called")

    x, out = random(3, 300), random(3, 3)
    a = octofold.quantize(x)
    from octofold._core import ops
    from octofold._core import torch_ops as bridge

    monkeypatch.setattr(bridge, "_REGISTERED", dict.fromkeys(ops.TABLE, refuse))
    layer(x, torch.nn.Parameter(random(7, 300)).data, random(7))
    octofold.ops.cast(x, rows="1x128", transposed="1x128")
    octofold.gemm(a, a, out=out, c=out)
    weights = random(3, 300).requires_grad_()
    with torch.no_grad():
        octofold.quantize(weights)
    with pytest.raises(AssertionError):
        octofold.quantize(weights)
    with pytest.raises(AssertionError):
        octofold.gemm(a, a, bias=random(3).requires_grad_())


def test_negation_that_torch_puts_off():
    """torch may negate when it reads; the memory still has the other sign."""
    x = random(3, 300)
    assert torch.equal(octofold.ops.convert_dtype(torch._neg_view(x), "float16"), (-x).half())


def test_transforms_of_functions():
    x = random(2, 3, 300)
    expected = torch.stack([octofold.quantize(matrix).dequantize() for matrix in x])
    assert torch.equal(torch.func.vmap(lambda y: octofold.quantize(y).dequantize())(x), expected)
    w = octofold.quantize(random(5, 300))

    def product(scale, c):
        return octofold.gemm(w, octofold.ScaledTensor(w.data, scale, "1x128"), c=c)

    scales, c = w.scale * torch.tensor([1.0, 2.0])[:, None, None], random(5, 5).bfloat16()
    assert torch.equal(
        torch.func.vmap(product, (0, None))(scales, c),
        torch.stack([product(scale, c) for scale in scales]),
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traces():
    x, other = random(3, 300), random(3, 300)
    traced = torch.jit.trace(lambda y: octofold.ops.convert_dtype(y, "float16"), x)
    assert torch.equal(traced(other), other.half())


def test_shapes_without_data():
    x = torch.empty(3, 300, device="meta")
    cast = octofold.quantize(x, "channel")
    assert (cast.data.device.type, cast.scale.shape) == ("meta", (3,))
    assert octofold.gemm(cast, cast).shape == (3, 3)


def test_inference_mode():
    x, out = random(3, 300), random(3, 3)
    with torch.inference_mode():
        a = octofold.quantize(x.clone())
        expected = octofold.gemm(a, a, out_dtype=torch.float32)
        assert torch.equal(octofold.gemm(a, a, out=out), expected)
        assert torch.equal(octofold.gemm(a, a, out=torch.empty(3, 3)), expected)


def test_two_devices():
    a, nowhere = octofold.quantize(random(3, 300)), torch.empty(3, device="meta")
    with pytest.raises(octofold.InvalidArgumentError, match="gemm: argument 'bias': ") as caught:
        octofold.gemm(a, a, bias=nowhere)
    assert len(str(caught.value).splitlines()) == 1  # without torch's stack


@pytest.mark.parametrize("rows", [6, 130, 1])
def test_layout_of_scales_on_a_gpu(rows):
    """The op promises this layout to the compiler; tests/gpu compares it with the result's."""
    with FakeTensorMode():
        x = torch.empty(rows, 300, device="cuda")
        cast = octofold.quantize(x)
        leading = octofold.quantize(x.view(rows, 1, 300))
    assert cast.scale.stride() == (1, (rows + 3) // 4 * 4)
    assert cast.scale.shape == (rows, 3)
    assert cast.data.stride() == (320, 1)
    assert leading.data.stride() == (320, 320, 1)
    assert leading.scale.stride() == (1, 1, (rows + 3) // 4 * 4)


@pytest.mark.slow
def test_compiles_without_recompiling_for_sizes():
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    w, bias = random(17, 300), random(17)
    compiled(random(33, 300), w, bias)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(random(260, 300), w, bias)


@pytest.mark.parametrize(("users", "seen"), [(None, "1"), ("0", "0")])
def test_import_leaves_cuda_alone(users, seen, monkeypatch):
    """torch asks the management library, unless the user has it otherwise; else no child by fork
    could use a GPU."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    script = f"""
import os, torch
asked = []
torch.cuda.is_available = lambda: asked.append(os.environ.get({name!r})) or False
import octofold
assert set(asked) <= {{{seen!r}}}, asked
assert os.environ.get({name!r}) == {users!r}
"""
    monkeypatch.delenv(name, raising=False)
    python(script, **({} if users is None else {name: users}))


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_layout_of_scales_is_the_librarys(granularity):
    """Python works it out again, as torch's symbolic sizes cannot go to the library."""
    for rows, cols in ((1, 1), (3, 128), (4, 129), (130, 300), (0, 5), (7, 0)):
        shape, strides = library.scale_layout(granularity, rows, cols, True)
        assert quick_scale_shape(granularity, (rows, cols)) == tuple(shape)
        if granularity == "1x128":
            assert tuple(strides) == (1, column_stride(rows)) == tuple(columns_first(tuple(shape)))


def test_rows_of_codes_on_a_gpu_begin_with_sectors():
    expected = {0: 0, 1: 32, 16: 32, 32: 32, 424: 448, 2880: 2880, 4304: 4320}
    assert {cols: row_stride(cols) for cols in expected} == expected
    assert tuple(aligned_rows((2, 3, 48))) == (3 * 64, 64, 1)


def test_scales_of_leading_dimensions_on_a_gpu_have_columns_first():
    assert tuple(columns_first((2, 3, 5))) == (3, 1, 8)


def test_options_are_checked_where_torch_has_to_know_too():
    x = torch.ones(4, 256, requires_grad=True)
    expected = octofold.quantize(x, matrices=2)
    assert octofold.quantize(x, matrices=np.int64(2)).equals(expected)
    with pytest.raises(octofold.InvalidArgumentError, match=r"'matrices': .* number or None, got"):
        octofold.quantize(x, matrices="2")


@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (5, 0), (4,), (2, 3, 5), (2, 0, 5), ()])
def test_results_are_allocated_as_torch_does(shape):
    """By strides of our own, which is quicker."""
    from octofold._core.torch import EagerTorchFramework, TorchFramework

    like = torch.empty(0)
    quick, plain = EagerTorchFramework(like), TorchFramework(like)
    for make in (
        lambda framework: framework.empty(shape, "e4m3"),
        lambda framework: framework.empty_scale(shape, "1x128"),
    ):
        ours, theirs = make(quick), make(plain)
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
        assert ours.stride() == theirs.stride()
        assert ours.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_bytes_of_any_dtype_are_compared(dtype):
    """Tensors of odd sizes and without dimensions are compared, too: models' tied ones are such."""
    from octofold._core.torch import same_bytes

    for shape in ((3,), (5, 7), ()):
        one = torch.full(shape, 2, dtype=dtype)
        other = one.clone()
        assert same_bytes(one, other)
        other.view(-1)[-1] = 3
        assert not same_bytes(one, other)
