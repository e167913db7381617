"""ScaledTensor among torch's own: devices, files, modules; what may not be differentiated."""

import pickle

import pytest
from octofold import UnsupportedError, gemm, quantize

from tests.python.own_process import python

torch = pytest.importorskip("torch")


def random(*shape):
    return torch.randn(shape)


def test_to_device():
    cast = quantize(random(130, 300))
    assert cast.to("cpu") is cast
    assert cast.to(torch.device("cpu")) is cast
    moved = cast.to("meta")
    assert (moved.data.device.type, moved.scale.device.type) == ("meta", "meta")
    assert moved.granularity == cast.granularity
    assert (moved.shape, moved.scale.shape) == (cast.shape, cast.scale.shape)
    assert not moved.equals(cast)
    assert cast.equals(quantize(cast.dequantize()))
    for other in (-cast.dequantize(), cast.dequantize().numpy()):
        assert not cast.equals(quantize(other))


@pytest.mark.parametrize("order", ["import octofold, torch", "import torch, octofold"])
def test_saves_and_loads_what_is_not_trusted(order, tmp_path):
    """Under torch.load's default, whichever is imported first."""
    cast = quantize(random(130, 300))
    assert pickle.loads(pickle.dumps(cast)).equals(cast)
    torch.save({"weight": cast, "step": 3}, tmp_path / "file")
    assert torch.load(tmp_path / "file", weights_only=True)["weight"].equals(cast)
    script = f"""
{order}
loaded = torch.load({str(tmp_path / "file")!r})
assert loaded["step"] == 3
assert loaded["weight"].dequantize().shape == (130, 300)
"""
    python(script)


def has_history():
    return random(3, 3).requires_grad_() * 1


@pytest.mark.parametrize(
    "call",
    [
        lambda x, a, out: gemm(quantize(x.requires_grad_()), a, out=out),
        lambda x, a, out: gemm(a, a, out=has_history()),
        lambda x, a, out: gemm(a, a, out=out, bias=random(3).requires_grad_()),
        lambda x, a, out: gemm(a, a, out=out.requires_grad_()),
        lambda x, a, out: quantize(x.requires_grad_(), out=a),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore")  # Dynamo sets off torch's own
def test_out_is_not_differentiated(call, compiled):
    """No gradient passes out=, as in torch.mm: it would miss the product, or an old one be left."""
    x, out = random(3, 300), torch.zeros(3, 3)
    a = quantize(x)
    torch.compiler.reset()
    call_ = torch.compile(call, backend="aot_eager") if compiled else call
    with pytest.raises(UnsupportedError, match="'out': expected nothing to differentiate"):
        call_(x, a, out)
    assert not torch.any(out)
    with torch.no_grad():
        call_(x, a, out)
