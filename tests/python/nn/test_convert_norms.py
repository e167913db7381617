"""octofold.nn.convert_norms: RMSNorms of transformers' models against their own forward."""

import copy

import octofold
import pytest
from octofold import InvalidArgumentError, UnsupportedError

from tests.python.nn.layer_support import SMALL_MODEL, random, relative_error

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

from transformers import (  # noqa: E402
    Gemma2Config,
    Gemma2Model,
    GptOssConfig,
    GptOssModel,
    LlamaConfig,
    LlamaModel,
    Qwen3MoeConfig,
    Qwen3MoeModel,
)

nn = octofold.nn
BF16 = torch.bfloat16
FEW = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
# How many norms there are.
MODELS = {
    "llama": (5, lambda: LlamaModel(LlamaConfig(**SMALL_MODEL))),
    "qwen3_moe": (9, lambda: Qwen3MoeModel(Qwen3MoeConfig(**SMALL_MODEL, **FEW, num_experts=4))),
    "gpt_oss": (5, lambda: GptOssModel(GptOssConfig(**SMALL_MODEL, num_local_experts=4))),
}


def new_model(name, dtype=BF16):
    torch.manual_seed(0)
    model = MODELS[name][1]().to(dtype)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.uniform_(0.5, 1.5)
    return model


def new_norm(dtype=BF16, features=128):
    norm = copy.deepcopy(new_model("qwen3_moe", dtype).layers[0].self_attn.q_norm)
    norm.weight = torch.nn.Parameter(torch.rand(features).to(dtype) + 0.5)
    return norm


def results(model, x):
    """The output, and the gradients of x and of the parameters."""
    x = x.detach().requires_grad_()
    y = model(inputs_embeds=x).last_hidden_state if hasattr(model, "layers") else model(x)
    leaves = [x, *(p for key, p in model.named_parameters() if "embed" not in key)]
    return y, *torch.autograd.grad(y, leaves, gradient_of(y))


def gradient_of(y):
    torch.manual_seed(1)
    return torch.randn(y.shape).to(BF16).to(y.dtype)


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_they_did(name):
    plain = new_model(name, torch.float32)
    model = copy.deepcopy(plain)
    report = nn.convert_norms(model)
    assert report.model is model
    assert len(report.converted) == MODELS[name][0]
    assert not report.left_alone
    assert list(model.state_dict()) == list(plain.state_dict())
    kinds = [type(module).__name__ for module in plain.modules()]
    assert [type(module).__name__ for module in model.modules()] == kinds
    x = random(2, 24, 256)
    for actual, expected in zip(results(model, x), results(plain, x), strict=True):
        assert actual.dtype == torch.float32
        assert relative_error(actual, expected) < 1e-4


@pytest.mark.parametrize("shape", [(40, 128), (2, 5, 4, 128), (0, 128)])
def test_a_norm_is_nearer_to_the_truth_than_its_own_forward(shape):
    plain = new_norm()
    norm = copy.deepcopy(plain)
    nn.convert_norms(norm)
    x = random(*shape).to(BF16)
    exact = results(copy.deepcopy(plain).double(), x.double())
    for actual, own, expected in zip(results(norm, x), results(plain, x), exact, strict=True):
        assert actual.dtype == BF16
        assert actual.shape == expected.shape
        if shape[0]:
            assert relative_error(actual, expected) < 1.05 * relative_error(own, expected)
            assert relative_error(actual, expected) < 4e-3
    y = norm(x)
    with torch.no_grad():
        assert torch.equal(norm(x), y)


def test_rows_that_do_not_follow_each_other():
    norm = new_norm()
    nn.convert_norms(norm)
    x = random(2, 4, 6, 128).to(BF16)
    y, dx, dw = results(norm, x)
    moved = x.detach().requires_grad_()
    across = norm(moved.transpose(1, 2))
    gradient = gradient_of(y).transpose(1, 2)
    found = torch.autograd.grad(across, (moved, norm.weight), gradient)
    assert torch.equal(across.transpose(1, 2), y)
    assert torch.equal(found[0], dx)
    assert relative_error(found[1], dw) < 4e-3  # another order of rows


def test_where_its_own_forward_runs():
    norm, plain = new_norm(), new_norm()
    nn.convert_norms(norm)
    plain.load_state_dict(norm.state_dict())
    for x in (random(4, 128), random(128).to(BF16)):  # another dtype, no matrix
        assert torch.equal(norm(x), plain(x))
    x = random(3, 4, 128).to(BF16)
    assert torch.equal(torch.func.vmap(norm)(x), plain(x))
    found = torch.func.grad(lambda x: norm(x).sum())(x)
    assert torch.equal(found, torch.func.grad(lambda x: plain(x).sum())(x))


@pytest.mark.slow
def test_compiles():
    norm, plain = new_norm(), new_norm()
    nn.convert_norms(norm)
    plain.load_state_dict(norm.state_dict())
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    x = random(40, 128).to(BF16)
    for actual, expected in zip(results(compiled, x), results(plain, x), strict=True):
        assert torch.equal(actual, expected)


def test_a_second_derivative_is_an_error():
    norm = new_norm()
    nn.convert_norms(norm)
    x = random(4, 128).to(BF16).requires_grad_()
    with pytest.raises(UnsupportedError, match="cannot be differentiated"):
        torch.autograd.grad(norm(x).sum(), x, create_graph=True)


def test_filter_and_what_is_left_alone():
    model = new_model("qwen3_moe")
    report = nn.convert_norms(model, lambda module, name: "layernorm" in name)
    assert len(report.converted) == 4
    assert report.left_alone["layers.0.self_attn.q_norm"] == "module_filter_fn does not pick it"
    report = nn.convert_norms(model)
    assert len(report.converted) == 5
    assert set(report.left_alone.values()) == {"it is converted already"}
    with pytest.raises(InvalidArgumentError, match="'model': expected an RMSNorm"):
        nn.convert_norms(model)


def test_others_are_refused():
    gemma = Gemma2Model(Gemma2Config(**SMALL_MODEL))
    with pytest.raises(InvalidArgumentError, match="Gemma2RMSNorm may compute something else"):
        nn.convert_norms(gemma)
    with pytest.raises(InvalidArgumentError, match="'model': expected a torch"):
        nn.convert_norms(3)
    with pytest.raises(InvalidArgumentError, match="'module_filter_fn': expected a function"):
        nn.convert_norms(new_norm(), 3)
    with pytest.raises(InvalidArgumentError, match="'module_filter_fn': expected to pick"):
        nn.convert_norms(new_norm(), lambda *_: False)
    replaced = new_norm()
    replaced.forward = lambda x: x
    with pytest.raises(InvalidArgumentError, match="may compute something else"):
        nn.convert_norms(replaced)
