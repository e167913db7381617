"""Fused layers on a GPU: the CPU's results, no synchronization, graphs over forward and backward,
what is kept. Prints what it measured (pytest -s)."""

import copy

import octofold
import pytest

from tests.gpu.gpu_support import DEVICE, ON_GPU, needs_gpu, skip_without, torch
from tests.python.nn.layer_support import STATELESS, relative_error

skip_without("products")

nn = octofold.nn
TOKENS, IN, HIDDEN = 520, 1024, 384
BF16 = torch.bfloat16
OPTIONS = {"device": DEVICE, "dtype": BF16, "force_fp8": True}


def random(*shape, dtype=BF16):
    return torch.randn(shape, device=DEVICE).to(dtype)


class Block(torch.nn.Module):
    """Norms with residuals, gated MLPs, of which one keeps its gate and up in FP8, and a plain one,
    a bias: x [..., IN] as its result."""

    def __init__(self, recipe):
        super().__init__()
        options = OPTIONS | {"recipe": recipe}
        self.inner = nn.NormLinear(IN, IN, norm="layer", **options)
        self.gated = nn.MLP(IN, HIDDEN, norm="rms", **options)
        linears = [torch.nn.Linear(IN, HIDDEN, False, DEVICE, BF16) for _ in range(2)]
        linears.append(torch.nn.Linear(HIDDEN, IN, False, DEVICE, BF16))
        self.apart = nn.MLP.from_linears(*linears, recipe=recipe, force_fp8=True, keep_fp8=True)
        self.plain = nn.MLP(IN, HIDDEN, bias=True, activation="gelu", **options)

    def forward(self, x):
        y, x = self.gated(self.inner(x), x)
        return x + self.apart(y) + self.plain(y)


def step(module, x, dy):
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = module(x)
    y.backward(dy)
    return [y.detach(), x.grad, *[p.grad.clone() for p in module.parameters()]]


@pytest.mark.parametrize("recipe", STATELESS)
def test_computes_what_the_cpu_does(recipe):
    """Parts alone. Statistics, exponentials and sums may differ in their last bits, and then, where
    a value lies between two codes, the codes; where all share one scale, and the largest value is
    another one, all codes."""
    block = Block(recipe)
    limit = 0.06 if recipe == "tensorwise" else 0.03
    for name, module in block.named_children():
        out = random(2, TOKENS, IN)
        x = random(2, TOKENS, IN)
        reference = copy.deepcopy(module).cpu()
        for left, right in zip(
            step(module, x, out), step(reference, x.cpu(), out.cpu()), strict=True
        ):
            assert left.dtype == right.dtype == BF16
            assert relative_error(left.cpu(), right) < limit, name
        with torch.no_grad():
            assert relative_error(module(x).cpu(), reference(x.cpu())) < limit, name


@pytest.mark.parametrize("hidden", [384, 200])
def test_without_gradients(hidden):
    """By one kernel where there is one; the result of training's forward."""
    module = nn.MLP(IN, hidden, **OPTIONS)
    x = random(2, TOKENS, IN)
    with torch.no_grad():
        without = module(x)
    assert relative_error(without, module(x).detach()) < 2**-8


@needs_gpu
@pytest.mark.parametrize("recipe", STATELESS)
def test_does_not_synchronize(recipe):
    module, x, dy = Block(recipe), random(TOKENS, IN), random(TOKENS, IN)
    step(module, x, dy)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            step(module, x, dy)
            with torch.no_grad():
                module(x)
                for parameter in module.parameters():
                    parameter.mul_(1.01)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("recipe", STATELESS)
def test_graph_over_forward_and_backward(recipe):
    """Replayed with other data and other weights, which each replay casts anew."""
    module = Block(recipe)
    x, dy = random(TOKENS, IN).requires_grad_(), random(TOKENS, IN)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            module(x).backward(dy)
    torch.cuda.current_stream().wait_stream(stream)
    module.zero_grad()
    x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module(x)
        y.backward(dy)
    for _ in range(3):
        with torch.no_grad():
            x.copy_(random(TOKENS, IN))
            dy.copy_(random(TOKENS, IN))
            for parameter in module.parameters():
                parameter.mul_(1.1)
        graph.replay()
        actual = [y, x.grad, *[p.grad for p in module.parameters()]]
        actual = [t.detach().clone() for t in actual]
        expected = step(copy.deepcopy(module), x, dy)
        for left, right in zip(actual, expected, strict=True):
            if recipe == "rowwise_with_gw_hp":  # whose weight gradients are cuBLAS's
                assert relative_error(left, right) < 2**-8
            else:
                assert torch.equal(left, right)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
@pytest.mark.parametrize("recipe", ["blockwise", "rowwise_with_gw_hp"])
def test_compiles_whole(recipe, backend):
    torch.compiler.reset()
    module, x, dy = Block(recipe), random(TOKENS, IN), random(TOKENS, IN)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend=backend)
    for left, right in zip(step(compiled, x, dy), step(module, x, dy), strict=True):
        assert relative_error(left, right) < (1e-6 if backend == "aot_eager" else 0.05)


@needs_gpu
@pytest.mark.parametrize("keep_fp8", [False, True])
@pytest.mark.parametrize("recipe", STATELESS)
def test_bytes_kept_for_backward(recipe, keep_fp8):
    """An MLP with norm and residual keeps the sum, gate and up in BF16, or in FP8 with their
    scales; x and h transposed in FP8, and so the weights."""
    tokens = 16384
    module = nn.MLP(IN, HIDDEN, norm="rms", recipe=recipe, keep_fp8=keep_fp8, **OPTIONS)
    x = random(tokens, IN).requires_grad_()
    residual = random(tokens, IN).requires_grad_()
    module(x, residual)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y, total = module(x, residual)
    kept = torch.cuda.memory_allocated() - before - y.numel() * y.itemsize
    in_fp8 = 0 if recipe == "rowwise_with_gw_hp" else IN + HIDDEN
    gate_up = 2 * HIDDEN + 4 * (2 * HIDDEN // 128) if keep_fp8 else 2 * 2 * HIDDEN
    expected = tokens * (2 * IN + gate_up + in_fp8 + 4) + 3 * IN * HIDDEN
    what = f"{recipe}, keep_fp8={keep_fp8}"
    print(f"{what}: {kept / tokens:.0f} bytes per token, meant {expected / tokens:.0f}")
    assert total.shape == x.shape
    assert expected <= kept < 1.02 * expected
