"""Layers on a GPU, trained ones and those with FP8 weights: the CPU's results, the same bits each
time, no synchronization, graphs over forward and backward, casts in graphs, whole compiled."""

import copy
import itertools
from dataclasses import dataclass, field

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    HALVES,
    ON_GPU,
    captured,
    needs,
    needs_gpu,
    nothing_waits,
    torch,
)
from tests.gpu.layer_support import BF16, EXPERTS, SLOTS, assert_equal, random, routing, step
from tests.gpu.layer_support import HIDDEN as IN
from tests.gpu.layer_support import INNER as HIDDEN
from tests.python.nn.layer_support import NAMES, ask_for_main_grad, relative_error

nn = octofold.nn
RECIPES = {"blockwise": "128x128", "rowwise": "channel", "tensorwise": "tensor"}
"""Recipes of experts, and the granularity of their weights."""
CUBLAS = "rowwise_with_gw_hp"  # its weight gradients are cuBLAS's


@dataclass
class Case:
    """A module, and how far results may be from the CPU's: exponentials and sums may differ in
    their last bits, and then, where a value lies between two codes, the codes; where all share one
    scale, and the largest value is another one, all codes."""

    module: torch.nn.Module
    limit: float = 0.03
    limits: dict = field(default_factory=dict)  # of results by their place
    dtype: torch.dtype = torch.bfloat16
    is_routed: bool = False
    tokens: tuple = (520,)  # of which the CPU computes
    compiled: float = 0.03  # what inductor may make of it
    replayed: float = 0.0  # what a graph may

    def inputs(self, tokens=520):
        x = random(tokens, IN, dtype=self.dtype)
        return (x, *routing(tokens)) if self.is_routed else (x,)


def linear(recipe, dtype):
    layer = nn.Linear(IN, HIDDEN, device=DEVICE, dtype=dtype, recipe=recipe, force_fp8=True)
    # Codes and scales are the CPU's; sums in another order, and those of y of all K at once.
    limit = 1e-3 if dtype == torch.float32 else 2**-8
    of_y = limit if recipe == "blockwise" else 1e-2
    return Case(layer, limit, {0: of_y}, dtype, replayed=2**-8 if recipe == CUBLAS else 0)


def fused(part, recipe):
    """Norms with linear layers, gated MLPs, of which one keeps its gate and up in FP8, a plain one;
    and all of them one after another."""
    options = BF16 | {"force_fp8": True, "recipe": recipe}
    linears = [torch.nn.Linear(IN, HIDDEN, False, **BF16) for _ in range(2)]
    linears.append(torch.nn.Linear(HIDDEN, IN, False, **BF16))
    parts = {
        "norm": lambda: nn.NormLinear(IN, IN, norm="layer", **options),
        "gated": lambda: nn.MLP(IN, HIDDEN, norm="rms", **options),
        "kept": lambda: nn.MLP.from_linears(*linears, recipe=recipe, force_fp8=True, keep_fp8=True),
        "plain": lambda: nn.MLP(IN, HIDDEN, bias=True, activation="gelu", **options),
    }
    module = parts[part]() if part in parts else Block(*(make() for make in parts.values()))
    limit = 0.06 if recipe == "tensorwise" else 0.03
    return Case(module, limit, compiled=0.05, replayed=2**-8 if recipe == CUBLAS else 0)


class Block(torch.nn.Module):
    def __init__(self, inner, gated, apart, plain):
        super().__init__()
        self.inner, self.gated, self.apart, self.plain = inner, gated, apart, plain

    def forward(self, x):
        y, x = self.gated(self.inner(x), x)
        return x + self.apart(y) + self.plain(y)


def experts(recipe, bias):
    module = nn.Experts(IN, HIDDEN, EXPERTS, recipe=recipe, bias=bias, **BF16)
    return Case(
        module, 0.06 if recipe == "tensorwise" else 0.03, is_routed=True, tokens=(520, 33, 1)
    )


def weight_only(recipe, dtype, activation):
    """Experts with FP8 weights and biases."""
    shapes = (EXPERTS, 2 * HIDDEN, IN), (EXPERTS, IN, HIDDEN)
    options = {"dtype": DTYPES[dtype]}
    stacks = [
        octofold.quantize(random(*shape, **options) / 16, RECIPES[recipe], matrices=EXPERTS)
        for shape in shapes
    ]
    biases = [random(EXPERTS, shape[1], **options) / 4 for shape in shapes]
    options = {"recipe": recipe, "compute": "weight-only", "activation": activation}
    module = nn.Experts.from_weights(*stacks, *biases, **options)
    return Case(module, 0.02, dtype=DTYPES[dtype], is_routed=True, tokens=(130, 1))


def mixture(recipe):
    """Its logits are cuBLAS's, which has other kernels for a graph at times, as inductor has: a
    token whose experts are close may take others, and one of 520 is an error of 0.06."""
    module = nn.MixtureOfExperts(
        *(IN, HIDDEN, EXPERTS, SLOTS, 256, "sigmoid"),
        groups=4,
        top_groups=2,
        choice_bias=True,
        recipe=recipe,
        **BF16,
    )
    return Case(module, 0.15, compiled=0.15, replayed=0.15)


FAMILIES = (
    ("products", linear, itertools.product(NAMES, (torch.float32, torch.bfloat16))),
    ("products", fused, itertools.product(("norm", "gated", "kept", "plain", "all"), NAMES)),
    ("grouped products", experts, itertools.product(RECIPES, (False, True))),
    ("grouped products", mixture, itertools.product(RECIPES)),
    (
        "products with FP8 weights",
        weight_only,
        itertools.product(RECIPES, (*HALVES, "float32"), ("swiglu", "swiglu-oss")),
    ),
)


def cases(families):
    for operation, make, every in families:
        for options in every:
            name = "-".join(map(str, (make.__name__, *options)))
            yield pytest.param(make, options, id=name, marks=needs(operation))


every_case = pytest.mark.parametrize(("make", "options"), list(cases(FAMILIES)))
COMPILED = (
    ("products", linear, [(recipe, torch.float32) for recipe in NAMES]),
    ("products", fused, [("all", "blockwise"), ("all", CUBLAS)]),
    ("grouped products", mixture, [("blockwise",)]),
)


def gradient_like(module, inputs):
    with torch.no_grad():
        y = module(*inputs)
    return random(*y.shape, dtype=y.dtype)


@every_case
def test_computes_what_the_cpu_does(make, options):
    case = make(*options)
    if isinstance(case.module, Block | nn.MixtureOfExperts):
        pytest.skip("its parts are compared")
    for tokens in case.tokens:
        inputs = case.inputs(tokens)
        dy = gradient_like(case.module, inputs)
        reference = copy.deepcopy(case.module).cpu()
        expected = step(reference, [t.cpu() for t in inputs], dy.cpu())
        for place, (left, right) in enumerate(
            zip(step(case.module, inputs, dy), expected, strict=True)
        ):
            assert left.dtype == right.dtype
            if not right.any():
                assert not left.any()
                continue
            # One token's gradients of routing weights are sums over H that may cancel: one of 0.36
            # was off by 0.06, where such sums are about 1.
            # One token's largest value, off by a bit, is another scale of all its codes.
            cancels = 5 if right.shape == (1, SLOTS) else 1.5 if tokens == 1 else 1
            limit = case.limits.get(place, case.limit)
            assert relative_error(left.cpu(), right) < limit * cancels, place
        with torch.no_grad():
            y = case.module(*inputs).cpu()
        limit = case.limits.get(0, case.limit)
        assert relative_error(y, expected[0]) < limit * (1.5 if tokens == 1 else 1)


@pytest.mark.parametrize("inner", [384, 200])
@pytest.mark.parametrize(
    ("make", "is_routed"),
    [
        pytest.param(lambda n: nn.MLP(IN, n, force_fp8=True, **BF16), 0, marks=needs("products")),
        pytest.param(
            lambda n: nn.Experts(IN, n, EXPERTS, **BF16), 1, marks=needs("grouped products")
        ),
    ],
    ids=["mlp", "experts"],
)
def test_without_gradients(make, is_routed, inner):
    """By one kernel where there is one; the result of training's forward."""
    case = Case(make(inner), is_routed=bool(is_routed))
    inputs = case.inputs()
    with torch.no_grad():
        without = case.module(*inputs)
    assert relative_error(without, case.module(*inputs).detach()) < 2**-8


@every_case
def test_the_same_bits_each_time(make, options):
    case = make(*options)
    if case.replayed:
        pytest.skip("cuBLAS's kernels")
    inputs = case.inputs()
    dy = gradient_like(case.module, inputs)
    first = step(case.module, inputs, dy)
    for _ in range(10 if ON_GPU else 2):
        assert_equal(step(case.module, inputs, dy), first)


@needs_gpu
@every_case
def test_does_not_synchronize(make, options):
    case = make(*options)
    if make is linear and case.dtype == torch.bfloat16:
        ask_for_main_grad(case.module)
    inputs = case.inputs()
    dy = gradient_like(case.module, inputs)
    others = (inputs[0], inputs[1].long(), inputs[2].bfloat16()) if case.is_routed else inputs
    step(case.module, inputs, dy)
    with nothing_waits():
        for _ in range(2):
            step(case.module, inputs, dy)
            step(case.module, others, dy)
            with torch.no_grad():
                case.module(*inputs)
                for parameter in case.module.parameters():
                    parameter.mul_(1.01)


@needs_gpu
@every_case
def test_graph_over_forward_and_backward(make, options):
    """Replayed with other data, other weights, which each replay casts anew, and other routing: all
    to one expert, all to none, some of each."""
    case = make(*options)
    inputs = case.inputs()
    dy = gradient_like(case.module, inputs)
    graph, results = captured(lambda: step(case.module, inputs, dy))
    ids = [lambda: routing(520)[0], lambda: routing(520, 0)[0], lambda: routing(520, 8)[0]]
    ids += [lambda: torch.full_like(inputs[1], expert) for expert in (5, -1)]  # noqa: B023
    for change in ids if case.is_routed else ids[:3]:
        with torch.no_grad():
            for tensor in (inputs[0], dy):
                tensor.copy_(torch.randn_like(tensor))
            if case.is_routed:
                inputs[1].copy_(change())
                inputs[2].copy_(torch.rand_like(inputs[2]))
            for parameter in case.module.parameters():
                parameter.mul_(1.1)
        graph.replay()
        actual = [t.clone() for t in results]
        # A copy computes them, as the module's own gradients lie in the graph's memory.
        expected = step(copy.deepcopy(case.module), inputs, dy)
        if not case.replayed:
            assert_equal(actual, expected)
        for left, right in zip(actual, expected, strict=True):
            assert torch.equal(left, right) or relative_error(left, right) < case.replayed


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if ON_GPU else ["aot_eager"])
@pytest.mark.parametrize(("make", "options"), list(cases(COMPILED)))
def test_compiles_whole(make, options, backend):
    torch.compiler.reset()
    case = make(*options)
    compiled = torch.compile(copy.deepcopy(case.module), fullgraph=True, backend=backend)
    for _ in range(2):
        inputs = case.inputs()
        dy = gradient_like(case.module, inputs)
        actual, expected = step(compiled, inputs, dy), step(case.module, inputs, dy)
        for left, right in zip(actual, expected, strict=True):
            limit = 1e-6 if backend == "aot_eager" else case.compiled
            assert torch.equal(left, right) or relative_error(left, right) < limit


@needs_gpu
@needs("products")
def test_capture_leaves_no_casts_behind():
    """They lie in the graph's memory. Nor does a graph use what keep_casts() keeps, which goes as
    that is left."""
    layer = nn.Linear(1024, 384, device=DEVICE, force_fp8=True).requires_grad_(False)
    x = torch.randn(520, 1024, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with nn.keep_casts(layer):
        expected = layer(x)
        with torch.cuda.graph(graph):
            y = layer(x)
        assert torch.equal(layer(x), expected)
    layer.weight.mul_(2)
    graph.replay()
    assert torch.equal(y, layer(x))
    assert not torch.equal(y, expected)
