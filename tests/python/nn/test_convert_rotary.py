"""octofold.nn.convert_rotary: attention of transformers' models against its own rotary function."""

import copy
import pickle
import types

import octofold
import pytest
from octofold import InvalidArgumentError, UnsupportedError

from tests.python.nn.layer_support import SMALL_MODEL, random, relative_error

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

import transformers  # noqa: E402
from transformers import (  # noqa: E402
    GptOssConfig,
    GptOssModel,
    LlamaConfig,
    LlamaModel,
    Qwen3MoeConfig,
    Qwen3MoeModel,
)
from transformers.models.llama import modeling_llama  # noqa: E402

nn = octofold.nn
BF16 = torch.bfloat16
FEW = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "num_experts": 4}
MODELS = {
    "llama": lambda: LlamaModel(LlamaConfig(**SMALL_MODEL)),
    "qwen3_moe": lambda: Qwen3MoeModel(Qwen3MoeConfig(**SMALL_MODEL, **FEW)),
}


def new_model(name="llama", dtype=BF16):
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def test_what_is_converted_is_pickled():
    model = new_model("qwen3_moe")
    for convert in (nn.convert_norms, nn.convert_rotary):
        convert(model)
    again, x = pickle.loads(pickle.dumps(model)), random(2, 24, 256).to(BF16)
    assert [type(module) for module in again.modules()] == [type(m) for m in model.modules()]
    assert all(map(torch.equal, results(again, x), results(model, x)))


def converted(model):
    model = copy.deepcopy(model)
    nn.convert_rotary(model)
    return model


def results(model, x):
    """The output, and the gradients of x and of the parameters."""
    x = x.detach().requires_grad_()
    y = model(inputs_embeds=x, use_cache=False).last_hidden_state
    leaves = [x, *(p for key, p in model.named_parameters() if "embed" not in key)]
    torch.manual_seed(1)
    return y, *torch.autograd.grad(y, leaves, torch.randn(y.shape).to(y.dtype))


def calls(monkeypatch):
    """How often the kernel ran, in a list."""
    module = octofold.nn.autograd.rotated
    seen = []

    def counted(*args, inverse=False):
        seen.append(inverse)
        return own(*args, inverse=inverse)

    own = module.rotary
    monkeypatch.setattr(module, "rotary", counted)
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_they_did(name, monkeypatch):
    plain = new_model(name, torch.float32)
    model = copy.deepcopy(plain)
    report = nn.convert_rotary(model)
    assert report.model is model
    assert list(report.converted) == [f"layers.{i}.self_attn" for i in range(2)]
    assert not report.left_alone
    assert list(model.state_dict()) == list(plain.state_dict())
    kinds = [type(module).__name__ for module in plain.modules()]
    assert [type(module).__name__ for module in model.modules()] == kinds
    seen, x = calls(monkeypatch), random(2, 24, 256)
    found, expected = results(model, x), results(plain, x)
    assert torch.equal(found[0], expected[0])  # FP32: the same bits
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert relative_error(one, other) < 1e-5  # sums of a weight's gradient in another order
    assert seen == 4 * [False] + 4 * [True]


def test_16_bits_are_rounded_less(monkeypatch):
    plain = new_model()
    x = random(2, 24, 256).to(BF16)
    exact = results(copy.deepcopy(plain).double(), x.double())
    seen = calls(monkeypatch)
    for actual, own, expected in zip(
        results(converted(plain), x), results(plain, x), exact, strict=True
    ):
        assert actual.dtype == BF16
        assert relative_error(actual, expected) < 1.1 * relative_error(own, expected) + 1e-3
    assert len(seen) == 8


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("batch_of_tables", [1, 3])
def test_the_function_is_transformers(heads, batch_of_tables, monkeypatch):
    own = modeling_llama.apply_rotary_pos_emb
    fused = octofold.nn.conversion.rotary._rotate
    seen = calls(monkeypatch)
    shape = [3, 10, 4, 32] if heads == 2 else [3, 4, 10, 32]
    few = [3, 10, 2, 32] if heads == 2 else [3, 2, 10, 32]
    q, k = random(*shape).requires_grad_(), random(*few).requires_grad_()
    cos, sin = (random(batch_of_tables, 10, 32) for _ in range(2))
    found, expected = fused(own, q, k, cos, sin, heads), own(q, k, cos, sin, heads)
    gradients = [random(*y.shape) for y in expected]
    found = (*found, *torch.autograd.grad(found, (q, k), gradients))
    expected = (*expected, *torch.autograd.grad(expected, (q, k), gradients))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert seen == [False, False, True, True]


def test_where_its_own_function_runs(monkeypatch):
    own = modeling_llama.apply_rotary_pos_emb
    seen = calls(monkeypatch)

    def rotate(q, k, cos, sin, heads=1):
        return octofold.nn.conversion.rotary._rotate(own, q, k, cos, sin, heads)

    q, k, cos, sin = random(2, 4, 10, 32), random(2, 2, 10, 32), *random(2, 1, 10, 32)
    cases = [
        (q.half(), k.half(), cos, sin),  # other dtypes
        (q.double(), k.double(), cos.double(), sin.double()),
        (q[0], k[0], cos, sin),  # no batch
        (q, k, cos.clone().requires_grad_(), sin),
        (q, k, cos[:, :1], sin[:, :1]),  # one position for all
    ]
    for operands in cases:
        for one, other in zip(rotate(*operands), own(*operands), strict=True):
            assert torch.equal(one, other)

    def loss(function):
        return torch.func.grad(lambda q: function(q, k, cos, sin)[0].square().sum())(q)

    assert torch.equal(loss(rotate), loss(own))
    assert not seen


def test_names_that_are_replaced_later_hold(monkeypatch):
    model, seen = converted(new_model()), calls(monkeypatch)
    x = random(1, 5, 256).to(BF16)
    model(inputs_embeds=x)
    assert len(seen) == 4
    rotated = []

    def other(q, k, cos, sin):
        rotated.append(q.shape)
        return q, k

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", other)
    model(inputs_embeds=x)
    assert len(seen) == len(rotated) + 2 == 4


def test_caches_and_no_gradient():
    plain = new_model(dtype=torch.float32)
    model = converted(plain)
    x = random(1, 9, 256)
    with torch.no_grad():
        first = model(inputs_embeds=x[:, :8], use_cache=True)
        last = model(inputs_embeds=x[:, 8:], past_key_values=first.past_key_values)
        expected = plain(inputs_embeds=x).last_hidden_state[:, 8:]
    assert relative_error(last.last_hidden_state, expected) < 1e-5


@pytest.mark.slow
def test_compiles():
    plain = new_model(dtype=torch.float32)
    compiled = torch.compile(converted(plain), fullgraph=True, backend="aot_eager")
    x = random(2, 16, 256)
    for actual, expected in zip(results(compiled, x), results(plain, x), strict=True):
        assert relative_error(actual, expected) < 1e-5


def test_a_second_derivative_is_an_error():
    model = converted(new_model(dtype=torch.float32))
    x = random(1, 4, 256).requires_grad_()
    y = model(inputs_embeds=x).last_hidden_state
    with pytest.raises(UnsupportedError, match="cannot be differentiated"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_goes_with_the_other_conversions():
    model = new_model("qwen3_moe")
    nn.convert_experts(model)
    nn.convert(model)
    nn.convert_norms(model)
    assert len(nn.convert_rotary(model).converted) == 2
    assert all(torch.isfinite(each).all() for each in results(model, random(1, 16, 256).to(BF16)))


def test_filter_and_what_is_left_alone():
    model = new_model()
    report = nn.convert_rotary(model, lambda module, name: "0" in name)
    assert list(report.converted) == ["layers.0.self_attn"]
    assert report.left_alone == {"layers.1.self_attn": "module_filter_fn does not pick it"}
    nn.convert_rotary(model)
    with pytest.raises(InvalidArgumentError, match="'model': expected attention of transformers"):
        nn.convert_rotary(model)
    with pytest.raises(InvalidArgumentError, match="'module_filter_fn': expected to pick"):
        nn.convert_rotary(new_model(), lambda *_: False)


@pytest.mark.parametrize("model", ["Cohere", "Phi3"])
def test_functions_that_are_written_otherwise_are_left_alone(model):
    """Cohere's halves are pairs of neighbours; Phi-3 rotates a part of a head."""
    config = getattr(transformers, f"{model}Config")(**SMALL_MODEL, pad_token_id=0)
    plain = getattr(transformers, f"{model}Model")(config)
    with pytest.raises(InvalidArgumentError, match=f"{model}Attention may compute something else"):
        nn.convert_rotary(plain)


def test_others_are_refused():
    with pytest.raises(InvalidArgumentError, match="GptOssAttention may compute something else"):
        nn.convert_rotary(GptOssModel(GptOssConfig(**SMALL_MODEL, num_local_experts=4)))
    with pytest.raises(InvalidArgumentError, match="'model': expected a torch"):
        nn.convert_rotary(3)
    with pytest.raises(InvalidArgumentError, match="with none"):
        nn.convert_rotary(torch.nn.Linear(2, 2))
    replaced = new_model().layers[0].self_attn
    replaced.forward = types.MethodType(lambda self, x: x, replaced)
    with pytest.raises(InvalidArgumentError, match="may compute something else"):
        nn.convert_rotary(replaced)
