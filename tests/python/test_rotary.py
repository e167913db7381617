"""ops.rotary against transformers' formula, and its transpose."""

import octofold
import pytest

from tests.cases.shapes import ROTARY
from tests.python.devices import rotary

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("each_device")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def tables(tokens, head_dim, dtype=torch.float32, batch=None):
    """Tables of cosines and sines as models make them: halves are equal."""
    positions = torch.arange((batch or 1) * tokens).view(batch or 1, tokens, 1)
    angles = positions / 100 ** (torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.cat((angles, angles), -1)
    angles = angles if batch else angles[0]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def formula(x, cos, sin):
    """The formula as transformers writes it, for x [..., tokens, heads, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.unsqueeze(-2) + turned * sin.unsqueeze(-2)


def expect_rounded_once(actual, exact, dtype):
    """FP32 arithmetic, whose terms are below 8, and one rounding."""
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    unit = torch.finfo(dtype).eps / 2
    limit = unit * exact.abs() + 8 * torch.finfo(torch.float32).eps + 1e-7
    assert bool(((actual.double() - exact).abs() <= limit).all())


@every_dtype
@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("head_dim", [2, 30, 64])
def test_is_the_formula_rounded_once(batch, head_dim, dtype):
    torch.manual_seed(0)
    shape = (7, 5, head_dim) if batch is None else (3, 7, 5, head_dim)
    x = torch.randn(shape).clamp(-4, 4).to(dtype)
    cos, sin = tables(7, head_dim, dtype, batch)
    expect_rounded_once(rotary(x, cos, sin), formula(x.double(), cos.double(), sin.double()), dtype)
    if dtype == torch.float32:
        assert torch.equal(rotary(x, cos, sin), formula(x, cos, sin))


@every_dtype
@pytest.mark.parametrize("inverse", [False, True])
def test_the_same_bits_on_each_device(dtype, inverse):
    """In any layout, and nothing beside the operands is read."""
    torch.manual_seed(0)
    for batch, tokens, heads, size in ROTARY:
        x, tables = torch.randn(batch, tokens, heads, size), torch.randn(2, batch, tokens, size)
        x, (cos, sin) = x.to(dtype), tables.to(dtype)
        for operands in ((x, cos, sin), (x, cos[:1], sin[:1]), (x[0], cos[0], sin[0])):
            expected = octofold.ops.rotary(*operands, inverse=inverse)
            wide = [torch.nn.functional.pad(each, (1, 3), value=torch.nan) for each in operands]
            for each in (operands, [each[..., 1:-3] for each in wide]):
                assert torch.equal(rotary(*each, inverse=inverse), expected)


@every_dtype
def test_the_inverse_is_the_gradient(dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 3, 32).to(dtype)
    cos, sin = (torch.randn(2, 6, 32).clamp(-2, 2).to(dtype) for _ in range(2))  # of any halves
    exact = x.double().requires_grad_()
    dy = torch.randn(x.shape).clamp(-2, 2).to(dtype)
    (dx,) = torch.autograd.grad(formula(exact, cos.double(), sin.double()), exact, dy.double())
    expect_rounded_once(rotary(dy, cos, sin, inverse=True), dx, dtype)


def test_strides():
    x, (cos, sin) = torch.randn(2, 4, 9, 64), tables(9, 64)
    moved = x.transpose(1, 2)
    expected = rotary(moved.contiguous(), cos, sin)
    assert torch.equal(rotary(moved, cos, sin), expected)
    wide = torch.randn(2, 9, 4, 200)[..., 3:67]
    assert torch.equal(rotary(wide, cos, sin), rotary(wide.contiguous(), cos, sin))
    one = x[:, :1].expand(-1, 6, -1, -1).transpose(1, 2)
    assert torch.equal(rotary(one, cos, sin), rotary(one.contiguous(), cos, sin))
    cos, sin = torch.randn(2, 9, 100)[..., :64]
    expected = rotary(moved, cos.contiguous(), sin.contiguous())
    assert torch.equal(rotary(moved, cos, sin), expected)


def test_of_nothing():
    assert rotary(torch.empty(9, 0, 64), *tables(9, 64)).shape == (9, 0, 64)
