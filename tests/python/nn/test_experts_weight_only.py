"""Experts that compute with 16-bit activations: of FP8 weights, and of weights in high precision,
as GPUs without grouped products of FP8 do."""

from functools import partial

import octofold
import pytest
import torch
from octofold import nn
from octofold.nn.autograd import experts as autograd_experts

from tests.python import gpu_fakes
from tests.python.nn.expert_support import HIDDEN, choices, operands, poisoned_memory, truth
from tests.python.nn.fused_support import differentiated, wide
from tests.python.nn.layer_support import random, relative_error

LIMIT = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-2}
GRANULARITIES = {"blockwise": "128x128", "rowwise": "channel", "tensorwise": "tensor"}


def coded(weight, granularity="128x128"):
    return octofold.quantize(weight.contiguous(), granularity, matrices=weight.shape[0])


def layer_of(dtype=torch.bfloat16, recipe="blockwise", **options):
    """The operands of experts with FP8 weights, and the same in float64 of what the codes stand
    for."""
    given = operands(bias=True, **options)
    exact = wide(given)
    for name in ("w13", "w2"):
        given[name] = coded(given[name], GRANULARITIES[recipe])
        exact[name] = given[name].dequantize("float32").double()
    for name in ("x", "b13", "b2"):
        given[name] = given[name].to(dtype)
        exact[name] = given[name].double()
    return given, exact


@pytest.mark.parametrize("recipe", GRANULARITIES)
@pytest.mark.parametrize("dtype", LIMIT)
def test_against_float64(dtype, recipe):
    ids = choices()
    given, exact = layer_of(dtype, recipe)
    dy = random(70, HIDDEN, dtype=dtype)
    options = {"topk_ids": ids, "recipe": recipe, "compute": "weight-only"}
    (y,), found = differentiated(partial(octofold.experts, **options), given, [dy])
    (other,), expected = differentiated(truth(ids), exact, [dy.double()])
    assert y.dtype == dtype
    assert relative_error(y, other) < LIMIT[dtype]
    assert set(found) == {"x", "topk_weights", "b13", "b2"}
    for name, gradient in found.items():
        assert gradient.dtype == given[name].dtype
        assert relative_error(gradient, expected[name]) < LIMIT[dtype], name


@pytest.mark.parametrize("compute", ["native", "weight-only"])
def test_either_fp8_type(compute):
    ids = choices()
    given, exact = layer_of()
    for name in ("w13", "w2"):
        given[name] = coded(given[name].dequantize("float32"), "128x128 e5m2")
        exact[name] = given[name].dequantize("float32").double()
    dy = random(70, HIDDEN, dtype=torch.bfloat16)
    function = partial(octofold.experts, topk_ids=ids, compute=compute)
    (y,), found = differentiated(function, given, [dy])
    (other,), expected = differentiated(truth(ids), exact, [dy.double()])
    limit = 0.08 if compute == "native" else 2e-2
    assert relative_error(y, other) < limit
    assert relative_error(found["x"], expected["x"]) < limit


@pytest.mark.parametrize("name", ["geglu-tanh", "relu-squared"])
def test_activations(name):
    ids = choices()
    given, exact = layer_of(gated=name.startswith("g"))
    y = octofold.experts(topk_ids=ids, activation=name, compute="weight-only", **given)
    assert relative_error(y, truth(ids, name)(**exact)) < 2e-2


def test_few_tokens(monkeypatch):
    ids = choices((70,))
    given, _ = layer_of()

    def run(count, **options):
        few = {**given, "x": given["x"][:count], "topk_weights": given["topk_weights"][:count]}
        return octofold.experts(topk_ids=ids[:count], **few, **options)

    monkeypatch.setattr(autograd_experts, "FEW_TOKENS_OF_EXPERTS", 8)
    for count in (8, 9):
        exact, native = (run(count, compute=compute) for compute in ("weight-only", "native"))
        assert not torch.equal(exact, native)
        assert torch.equal(run(count), exact if count == 8 else native)


@pytest.mark.parametrize("name", gpu_fakes.GPUS)
def test_which_way(name, pretend):
    """On each GPU: FP8 weights, and trained ones."""
    native = name in gpu_fakes.NATIVE
    given, _ = layer_of()
    ids = choices()
    of_16_bits = {
        n: w.dequantize("bfloat16") if n in ("w13", "w2") else w for n, w in given.items()
    }
    by_compute = {
        compute: octofold.experts(topk_ids=ids, compute=compute, **given)
        for compute in ("native", "weight-only")
    }
    pretend(name)
    of_fp8 = octofold.experts(topk_ids=ids, **given)
    assert torch.equal(of_fp8, by_compute["native" if native else "weight-only"])
    error = relative_error(octofold.experts(topk_ids=ids, **of_16_bits), by_compute["weight-only"])
    assert (error < 1e-2) == (not native)


@pytest.mark.parametrize("main_grad", [False, True])
@pytest.mark.parametrize("dtype", LIMIT)
def test_trained_weights_without_products(dtype, main_grad, pretend):
    """Experts compute as torch does: no cast, and every gradient."""
    given = operands(dtype=dtype, bias=True)
    ids = choices()
    weights = [torch.nn.Parameter(given[key]) for key in ("w13", "w2", "b13", "b2")]
    layer = nn.Experts.from_weights(*weights, main_grad=main_grad)
    x, share = (given[key].clone().requires_grad_() for key in ("x", "topk_weights"))
    dy = random(70, HIDDEN, dtype=dtype)
    pretend("8.0")
    y = layer(x, ids, share)
    y.backward(dy)
    (other,), expected = differentiated(truth(ids), wide(given), [dy.double()])
    assert y.dtype == dtype
    assert relative_error(y, other) < LIMIT[dtype]
    named = dict(zip(("w13", "w2", "b13", "b2"), weights, strict=True))
    for name, leaf in {**named, "x": x, "topk_weights": share}.items():
        of_main = main_grad and name in ("w13", "w2")
        gradient = leaf.main_grad if of_main else leaf.grad
        assert gradient.dtype == (torch.float32 if of_main else leaf.dtype)
        assert relative_error(gradient, expected[name]) < LIMIT[dtype], name


def test_one_of_the_weights_in_fp8(pretend):
    """Then both are computed with as numbers."""
    given, exact = layer_of()
    given["w2"] = given["w2"].dequantize("bfloat16")
    ids = choices()
    pretend("8.6")
    assert relative_error(octofold.experts(topk_ids=ids, **given), truth(ids)(**exact)) < 2e-2


def test_bfloat16_of_float32_or_float16(pretend):
    """Turing's tensor cores have no bfloat16."""
    given, exact = layer_of(torch.float32)
    ids = choices()
    errors = {}
    for name in ("7.5", "8.0"):
        pretend(name)
        y = octofold.experts(topk_ids=ids, **given)
        assert y.dtype == torch.float32
        errors[name] = relative_error(y, truth(ids)(**exact))
    assert errors["7.5"] < 2e-3 < errors["8.0"] < 2e-2


def adapters_of(given):
    """Terms beside both layers, by the names of their tensors."""
    made = {}
    for name in ("w13", "w2"):
        experts, out, inner = given[name].shape
        made[f"{name}_a"] = random(experts, 4, inner) * inner**-0.5
        made[f"{name}_b"] = random(experts, out, 4) / 2
    return made


def adapted(layer, ids, x, topk_weights, w13_a, w13_b, w2_a, w2_b):
    adapters = {"gate_up_proj": (w13_a, w13_b), "down_proj": (w2_a, w2_b)}
    return layer(x, ids, topk_weights, adapters=adapters)


@pytest.mark.parametrize("trained_bias", [False, True])
@pytest.mark.parametrize("recipe", GRANULARITIES)
@pytest.mark.parametrize("compute", ["native", "weight-only"])
def test_adapters_against_float64(compute, recipe, trained_bias):
    """Beside frozen weights, of sizes too that torch's products do not take; some slots go nowhere,
    and an expert has no tokens."""
    ids = choices()
    sizes = {"hidden": 100, "inner": 36} if trained_bias else {}
    given, exact = layer_of(recipe=recipe, **sizes)
    given |= adapters_of(given)
    exact |= wide({name: t for name, t in given.items() if name.endswith(("_a", "_b"))})
    frozen = [given.pop(name) for name in ("w13", "w2", "b13", "b2")]
    biases = [torch.nn.Parameter(bias, trained_bias) for bias in frozen[2:]]
    layer = nn.Experts.from_weights(*frozen[:2], *biases, recipe=recipe, compute=compute)
    dy = random(*given["x"].shape, dtype=torch.bfloat16)

    def merged(w13_a, w13_b, w2_a, w2_b, **others):
        others |= {name: exact[name] for name in ("w13", "w2")}
        others["w13"] = others["w13"] + w13_b @ w13_a
        return truth(ids)(**others | {"w2": others["w2"] + w2_b @ w2_a})

    with poisoned_memory():
        (y,), found = differentiated(partial(adapted, layer, ids), given, [dy])
        with torch.no_grad():
            again = adapted(layer, ids, **given)
    exact_leaves = {n: t for n, t in exact.items() if n not in ("w13", "w2")}
    (other,), expected = differentiated(merged, exact_leaves, [dy.double()])
    limit = 0.08 if compute == "native" else 2e-2
    assert relative_error(y, other) < limit
    assert relative_error(again, other) < limit
    found |= {n: b.grad for n, b in zip(("b13", "b2"), biases, strict=True) if trained_bias}
    for name, gradient in found.items():
        assert relative_error(gradient, expected[name]) < limit, name


@pytest.mark.parametrize(
    ("name", "rank", "out"),
    [("up", 4, 384), ("gate_up_proj", 4, 384), ("down_proj", 4, 384), ("down_proj", 0, 256)],
)
def test_adapters_that_do_not_fit(name, rank, out):
    given, _ = layer_of()
    adapters = {name: (random(5, rank, 192), random(5, out, rank))}
    wide = {n: given[n].dequantize("bfloat16") for n in ("w13", "w2")}
    for weights in (given, wide):
        layer = nn.Experts.from_weights(weights["w13"], weights["w2"])
        with pytest.raises(octofold.InvalidArgumentError, match=rf"adapters\['{name}'\]"):
            layer(given["x"], choices(), given["topk_weights"], adapters)


@pytest.mark.parametrize(
    ("compute", "with_adapters"),
    [("weight-only", False), ("weight-only", True), ("native", False)],
)
def test_compiled(compute, with_adapters):
    given, _ = layer_of()
    layer = nn.Experts.from_weights(given["w13"], given["w2"], compute=compute)
    ids, x = choices(), given["x"].requires_grad_()
    terms = adapters_of(given) if with_adapters else {}
    adapters = {"down_proj": (terms["w2_a"], terms["w2_b"])} if terms else None
    run = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for module in (run, layer):
        y = module(x, ids, given["topk_weights"], adapters)
        results.append((y, *torch.autograd.grad(y.sum(), x)))
    (y, dx), (expected_y, expected_dx) = results
    assert torch.equal(y, expected_y)
    alone = octofold.experts(x, ids, given["topk_weights"], *layer.parameters())
    assert torch.equal(alone, y) != with_adapters
    # Compiled by torch 2.9, what torch itself differentiates is rounded elsewhere (0.4 %).
    assert relative_error(dx, expected_dx) < 1e-2
