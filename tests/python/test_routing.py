"""Routing on the CPU against torch: choices, rows sorted by expert, weighted sums, gradients."""

import numpy as np
import pytest
from octofold._core.library import library
from octofold._ops.routing import _workspace_size
from octofold.nn.autograd.activated import ACTIVATIONS, activated, is_gated

from tests.cases.shapes import COMBINES, SORTS, TOP_K
from tests.python import routing_reference as reference
from tests.python.devices import (
    activation_dots,
    combine,
    combine_gradient,
    cpu_only,
    on_gpu,
    sort_by_expert,
    top_k,
    top_k_gradient,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("each_device")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEEPSEEK = {
    "scoring": "sigmoid",
    "normalize": True,
    "groups": 8,
    "top_groups": 4,
    "scaling_factor": 2.5,
}
ROUTERS = {
    "mixtral": {"normalize": True},
    "qwen3": {},
    "sigmoid": {"scoring": "sigmoid"},
    "deepseek": DEEPSEEK,
}
every_router = pytest.mark.parametrize("router", ROUTERS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def logits_of(*shape, dtype=torch.float32):
    return (2 * torch.randn(shape)).to(dtype)


def assert_chosen(ids, choices):
    """The k best, best first; of those that rounding cannot tell apart any."""
    chosen = choices.gather(-1, ids.long())
    expected = choices.topk(ids.shape[-1], -1).values
    torch.testing.assert_close(chosen, expected, rtol=0, atol=1e-6)
    assert (ids.sort(-1).values.diff(dim=-1) > 0).all()


@every_router
@every_dtype
def test_top_k(router, dtype):
    options = ROUTERS[router]
    for shape, k in TOP_K:
        logits = logits_of(*shape, dtype=dtype)
        bias = torch.randn(shape[-1]) / 4 if router == "deepseek" else None
        ids, weights = top_k(logits, k, bias=bias, **options)
        assert ids.shape == weights.shape == (*shape[:-1], k)
        assert ids.dtype == torch.int32
        assert weights.dtype == torch.float32
        of_choice = {
            name: options[name] for name in options if name not in ("normalize", "scaling_factor")
        }
        assert_chosen(ids, reference.choices_of(logits, bias=bias, **of_choice))
        of_weights = {name: options[name] for name in options if "groups" not in name}
        expected = reference.weights_of(logits, ids, **of_weights).float()
        torch.testing.assert_close(weights, expected, rtol=3e-6 if on_gpu() else 1e-6, atol=0)
    wide = torch.nn.functional.pad(logits, (3, 4))[..., 3:-4]
    for left, right in zip(top_k(wide, k), top_k(logits, k), strict=True):
        assert torch.equal(left, right)


@cpu_only
def test_routers_of_transformers():
    """Their own modules, of small configurations."""
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
    from transformers.models.mixtral.configuration_mixtral import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
    from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    x = torch.randn(40, 32)
    sizes = {"hidden_size": 32, "num_experts_per_tok": 4}
    mixtral = MixtralTopKRouter(MixtralConfig(**sizes, num_local_experts=16))
    qwen = Qwen3MoeTopKRouter(Qwen3MoeConfig(**sizes, num_experts=16, norm_topk_prob=False))
    deepseek = DeepseekV3TopkRouter(
        DeepseekV3Config(**sizes, n_routed_experts=32, n_group=4, topk_group=2)
    )
    for router, options in ((mixtral, ROUTERS["mixtral"]), (qwen, ROUTERS["qwen3"])):
        torch.nn.init.normal_(router.weight)
        logits, weights, ids = router(x)
        ours = top_k(logits, 4, **options)
        assert torch.equal(ours.ids, ids.int())
        torch.testing.assert_close(ours.weights, weights, rtol=1e-6, atol=0)
    torch.nn.init.normal_(deepseek.weight)
    deepseek.e_score_correction_bias.normal_()
    logits, weights, ids = deepseek(x)
    ours = top_k(
        logits,
        4,
        bias=deepseek.e_score_correction_bias,
        **{
            **DEEPSEEK,
            "groups": 4,
            "top_groups": 2,
            "scaling_factor": deepseek.routed_scaling_factor,
        },
    )
    order = ids.argsort(-1)  # theirs are in no order
    assert torch.equal(ours.ids.sort(-1).values, ids.gather(-1, order).int())
    torch.testing.assert_close(
        ours.weights.gather(-1, ours.ids.argsort(-1)), weights.gather(-1, order), rtol=1e-5, atol=0
    )


def test_ties_go_to_the_lower_index():
    logits = torch.tensor([[1.0, 3, 2, 3, -0.0, 0.0, 2]])
    for scoring in ("softmax", "sigmoid"):
        ids = top_k(logits, 7, scoring=scoring).ids
        assert ids.tolist() == [[1, 3, 2, 6, 0, 4, 5]]
    logits = torch.zeros(1, 8)  # groups too
    ids = top_k(logits, 4, scoring="sigmoid", groups=4, top_groups=2).ids
    assert ids.tolist() == [[0, 1, 2, 3]]


def test_nan_is_above_all():
    inf = torch.inf
    logits = torch.tensor([[0.0, inf, torch.nan, 1], [-inf, 1e30, -inf, -0.0]])
    for scoring in ("softmax", "sigmoid"):
        assert top_k(logits, 3, scoring=scoring).ids.tolist() == [[2, 1, 3], [1, 3, 0]]


@every_router
@every_dtype
def test_top_k_gradient(router, dtype):
    options = {name: ROUTERS[router][name] for name in ROUTERS[router] if "groups" not in name}
    for shape, k in TOP_K:
        logits = logits_of(*shape, dtype=dtype)
        gradient = torch.randn(*shape[:-1], k)
        ids = top_k(logits, k, **options).ids
        if ids.numel():
            ids[0, ..., 1:3] = -1
        wide = logits.double().requires_grad_()
        reference.weights_of(wide, ids, **options).backward(gradient.double())
        actual = top_k_gradient(gradient, logits, ids, **options)
        assert actual.dtype == dtype
        rtol = max(torch.finfo(dtype).eps, 1e-4) if on_gpu() else 1e-5
        limits = {"rtol": rtol, "atol": 1e-5 if on_gpu() else 1e-8}
        torch.testing.assert_close(actual, wide.grad.to(dtype), **limits)


@pytest.mark.parametrize(("tokens", "k", "experts"), SORTS)
def test_sort_by_expert(tokens, k, experts, rng):
    """Anywhere, most to few experts, all to one, and to none."""
    few = rng.integers(-1, min(experts, 3), (tokens, k))
    anywhere = rng.integers(-1, experts, (tokens, k))
    mixed = np.where(rng.random((tokens, k)) < 0.5, few, anywhere)
    for each in (anywhere, mixed, 0 * few, 0 * few - 1):
        ids = torch.from_numpy(each.astype(np.int32))
        actual = sort_by_expert(ids, experts)
        expected = reference.sort_by_expert(ids, experts)
        for left, right in zip(actual, expected, strict=True):
            assert left.dtype == torch.int32
            assert torch.equal(left, right)
        # A choice that goes to a position comes back from it.
        slots = actual.positions[ids >= 0].long()
        assert torch.equal(actual.sources[slots].long(), (ids.flatten() >= 0).nonzero()[:, 0])


def test_sort_of_leading_dimensions_and_strided_rows(rng):
    ids = torch.from_numpy(rng.integers(-1, 9, (4, 5, 8)).astype(np.int32))
    expected = sort_by_expert(ids.reshape(20, 8).contiguous(), 9)
    actual = sort_by_expert(ids, 9)
    assert actual.positions.shape == (4, 5, 8)
    assert torch.equal(actual.sources, expected.sources)
    part = ids[..., 2:5].reshape(20, 3)
    strided = sort_by_expert(ids.view(20, 8)[:, 2:5], 9)
    for left, right in zip(strided, sort_by_expert(part.clone(), 9), strict=True):
        assert torch.equal(left, right)


@cpu_only
def test_workspace_is_the_librarys():
    sizes = [0, 1, 2047, 2048, 2049, 2**18 - 1, 2**18, 2**18 + 1, 2**20, 10**7, 2**31 - 1]
    for slots in sizes:
        for experts in (0, 1, 256):
            assert _workspace_size(slots, experts) == library.sort_workspace_size(slots, experts)


def positions_of(rng, tokens, k, rows):
    return torch.from_numpy(rng.integers(-1, rows, (tokens, k)).astype(np.int32))


@every_dtype
@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
def test_combine(dtype, out_dtype, rng):
    for tokens, k, rows, cols in COMBINES:
        y = torch.randn(rows, cols).to(dtype)
        positions = positions_of(rng, tokens, k, rows)
        weights, c = torch.randn(tokens, k), torch.randn(tokens, cols).to(out_dtype)
        for options in ({}, {"weights": weights}, {"weights": weights, "c": c}, {"c": c}):
            expected = reference.combine(y, positions, **options, out_dtype=out_dtype)
            actual = combine(y, positions, **options, out_dtype=out_dtype)
            assert actual.dtype == out_dtype
            assert torch.equal(actual, expected)
        out = c.clone()
        assert combine(y, positions, weights, c=out, out=out) is out
        assert torch.equal(out, reference.combine(y, positions, weights, c, out_dtype))
    assert combine(y, positions).dtype == dtype


def test_combine_in_order():
    y = torch.tensor([[2.0**24], [1.0], [-(2.0**24)]])
    positions = torch.tensor([[0, 1, 2], [0, 2, 1], [2, 1, 0]], dtype=torch.int32)
    assert combine(y, positions).flatten().tolist() == [0, 1, 1]
    c = torch.full((3, 1), 1.0)
    assert combine(y, positions, c=c).flatten().tolist() == [0, 1, 2]


@every_dtype
@pytest.mark.parametrize("of_gradient", DTYPES, ids=str)
def test_combine_gradient(of_gradient, dtype, rng):
    for *tokens, k, rows, cols in (*COMBINES, (2, 3, 2, 9, 77)):
        shape = tuple(tokens)
        y = torch.randn(rows, cols).to(dtype)
        gradient = torch.randn(*shape, cols).to(of_gradient)
        positions = positions_of(rng, int(np.prod(shape)), k, rows).view(*shape, k)
        actual = combine_gradient(gradient, y, positions)
        expected = reference.combine_gradient(gradient, y, positions)
        limits = {"rtol": 1e-5, "atol": 1e-6 * cols} if on_gpu() else {"rtol": 1e-6, "atol": 1e-9}
        torch.testing.assert_close(actual, expected, **limits)
        assert (actual[positions < 0] == 0).all()


@every_dtype
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_dots(activation, dtype, rng):
    for *tokens, k, rows, cols in (*COMBINES, (2, 3, 2, 9, 77)):
        shape = tuple(tokens)
        x = (3 * torch.randn(rows, cols * (2 if is_gated(activation) else 1))).to(dtype)
        gradient = torch.randn(rows, cols).to(dtype)
        positions = positions_of(rng, int(np.prod(shape)), k, rows).view(*shape, k)
        actual = activation_dots(gradient, x, positions, activation=activation)
        h = activated(x.double(), activation)
        expected = reference.activation_dots(gradient, h, positions)
        atol = 1e-5 * cols**0.5 if on_gpu() else 1e-9
        torch.testing.assert_close(actual, expected, rtol=1e-5 if on_gpu() else 1e-6, atol=atol)
        assert (actual[positions < 0] == 0).all()
