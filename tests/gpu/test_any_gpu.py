"""One behaviour everywhere, on the GPU at hand and as an older one (OCTOFOLD_TARGET=sm_80): layers
with FP8 weights and experts compute. What they become is tests/python/nn/test_any_gpu.py's."""

import copy

import octofold
import pytest
from octofold._info import EXPERTS, FP8, LINEAR, NATIVE, TRAINED, WEIGHT_ONLY
from octofold.nn.recipes.kernels import layer_products

from tests.gpu.gpu_support import DEVICE, DTYPES, HALVES, skip_without, torch
from tests.gpu.layer_support import step
from tests.python.nn.expert_support import choices
from tests.python.nn.layer_support import relative_error

skip_without("products with FP8 weights")

nn = octofold.nn
TOKENS, HIDDEN, INNER, COUNT, SLOTS = 260, 512, 384, 12, 4
GRANULARITIES = {"blockwise": "128x128", "rowwise": "channel", "tensorwise": "tensor"}
LINEARS = layer_products(LINEAR, FP8, DEVICE)
STACKS = layer_products(EXPERTS, FP8, DEVICE)


def random(*shape, dtype=HALVES[0]):
    return torch.randn(shape, device=DEVICE).to(DTYPES[dtype])


def experts_of(recipe="blockwise", compute="weight-only", dtype=HALVES[0], **options):
    """With FP8 weights and biases."""
    first, second = (
        octofold.quantize(random(COUNT, *shape) / 16, GRANULARITIES[recipe], matrices=COUNT)
        for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
    )
    biases = random(COUNT, 2 * INNER, dtype=dtype) / 4, random(COUNT, HIDDEN, dtype=dtype) / 4
    options = {"recipe": recipe, "compute": compute, **options}
    return nn.Experts.from_weights(first, second, *biases, **options)


def routing(tokens=TOKENS):
    ids = choices((tokens,), COUNT, SLOTS, empty=2).to(DEVICE)
    return ids, torch.rand((tokens, SLOTS), device=DEVICE)


def test_experts_go_the_way_of_the_gpu():
    module = experts_of(compute="auto")
    exact = copy.deepcopy(module)
    for name in exact.weight_names:
        getattr(exact, name).compute = "weight-only"
    arguments = random(TOKENS, HIDDEN), *routing()
    with torch.no_grad():
        y, expected = module(*arguments), exact(*arguments)
    assert torch.equal(y, expected) == (STACKS.how == WEIGHT_ONLY)
    assert relative_error(y, expected) < 0.08


def test_trained_experts_go_the_way_of_the_gpu():
    """In FP8, or as torch computes them."""
    module = nn.Experts(HIDDEN, INNER, COUNT, bias=True, device=DEVICE, dtype=DTYPES[HALVES[0]])
    reference = copy.deepcopy(module).cpu().float()
    x, dy, (ids, weights) = random(TOKENS, HIDDEN), random(TOKENS, HIDDEN), routing()
    inputs = x.float().cpu(), ids.cpu(), weights.cpu()
    expected = step(reference, inputs, dy.float().cpu())
    native = layer_products(EXPERTS, TRAINED, DEVICE).how == NATIVE
    for left, right in zip(step(module, (x, ids, weights), dy), expected, strict=True):
        assert relative_error(left.cpu(), right) < (0.05 if native else 0.12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("recipe", GRANULARITIES)
def test_inference_layers_compute_anywhere(recipe, dtype):
    linear = torch.nn.Linear(HIDDEN, INNER, device=DEVICE)
    layer = nn.inference_linear(linear, recipe)
    weight = layer.weight.scaled.dequantize("float32")
    for tokens in (1, 40, 300, 2000):
        x, dy = random(tokens, HIDDEN, dtype=dtype), random(tokens, INNER, dtype=dtype)
        x.requires_grad_()
        y = layer(x)
        (dx,) = torch.autograd.grad(y, x, dy)
        limit = 0.06 if LINEARS.how == NATIVE else 0.02
        assert relative_error(y.float(), x.float() @ weight.t() + layer.bias) < limit
        # 0.0604 was seen on an H200.
        limit = 0.08 if LINEARS.how == NATIVE else 0.02
        assert relative_error(dx.float(), dy.float() @ weight) < limit


def test_layers_that_were_converted_elsewhere():
    """On the CPU, which has FP8 products, before the model comes here."""
    model = nn.convert(torch.nn.Sequential(torch.nn.Linear(HIDDEN, INNER))).model
    mlp = nn.MLP(HIDDEN, INNER, norm="rms")
    for module in (model, mlp):
        module.to(DEVICE, DTYPES[HALVES[0]])
        x = random(300, HIDDEN).requires_grad_()
        module(x).sum().backward()
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_converted_attention(dtype):
    """transformers' attention and its own function: but for roundings."""
    pytest.importorskip("transformers", minversion="5.0")
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, vocab_size=32)
    torch.manual_seed(0)
    plain = LlamaModel(config).to(DEVICE, DTYPES[dtype])
    model = copy.deepcopy(plain)
    octofold.nn.convert_rotary(model)
    x = random(2, 48, 256, dtype=dtype)
    dy, results = random(2, 48, 256, dtype=dtype), []
    for each in (model, plain):
        leaf = x.clone().requires_grad_()
        y = each(inputs_embeds=leaf, use_cache=False).last_hidden_state
        results.append((y, *torch.autograd.grad(y, leaf, dy)))
    limit = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for actual, expected in zip(*results, strict=True):
        actual, expected = actual.detach().double(), expected.detach().double()
        assert float((actual - expected).norm() / expected.norm()) < limit
