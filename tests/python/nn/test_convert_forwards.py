"""octofold.nn.convert_norms and convert_rotary: RMSNorms and attention of models of transformers
against their own forwards."""

import copy
import pickle
import re
import types
from pathlib import Path

import octofold
import pytest
import torch
from octofold import InvalidArgumentError, UnsupportedError

from tests.python.nn.layer_support import random, relative_error, transformers_model

pytest.importorskip("transformers", minversion="5.0")

from transformers.models.llama import modeling_llama

nn = octofold.nn
BF16 = torch.bfloat16
CONVERSIONS = {"norms": nn.convert_norms, "rotary": nn.convert_rotary}
by_conversion = pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)


def new_model(family, dtype=BF16):
    model = transformers_model(family, "AutoModel", moe_intermediate_size=128).to(dtype)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.uniform_(0.5, 1.5)
    return model


def converted(convert, module):
    module = copy.deepcopy(module)
    convert(module)
    return module


def results(model, x):
    """The output, and the gradients of x and of the parameters."""
    x = x.detach().requires_grad_()
    if hasattr(model, "layers"):
        y = model(inputs_embeds=x, use_cache=False).last_hidden_state
    else:
        y = model(x)
    leaves = [x, *(p for key, p in model.named_parameters() if "embed" not in key)]
    return y, *torch.autograd.grad(y, leaves, gradient_of(y))


def gradient_of(y):
    torch.manual_seed(1)
    return torch.randn(y.shape).to(BF16).to(y.dtype)


@pytest.fixture
def rotations(monkeypatch):
    """How often the rotary kernel ran, forward (False) and backward, in a list."""
    module = octofold.nn.autograd.normed
    own, seen = module.rotary, []

    def counted(*args, inverse=False):
        seen.append(inverse)
        return own(*args, inverse=inverse)

    monkeypatch.setattr(module, "rotary", counted)
    return seen


@pytest.mark.parametrize(
    ("convert", "family", "count"),
    [
        (nn.convert_norms, "llama", 5),
        (nn.convert_norms, "qwen3_moe", 9),
        (nn.convert_norms, "gpt_oss", 5),
        (nn.convert_rotary, "llama", 2),
        (nn.convert_rotary, "qwen3_moe", 2),
    ],
)
def test_models_compute_what_they_did(convert, family, count, rotations):
    plain = new_model(family, torch.float32)
    model = copy.deepcopy(plain)
    report = convert(model)
    assert report.model is model
    assert len(report.converted) == count
    assert not report.left_alone
    assert list(model.state_dict()) == list(plain.state_dict())
    kinds = [type(module).__name__ for module in plain.modules()]
    assert [type(module).__name__ for module in model.modules()] == kinds
    x = random(2, 24, 128)
    found = results(model, x)
    rotates = convert is nn.convert_rotary
    assert rotations == (4 * [False] + 4 * [True]) * rotates
    for actual, expected in zip(found, results(plain, x), strict=True):
        assert actual.dtype == torch.float32
        # Rotations change the order of sums in a weight's gradient alone.
        assert relative_error(actual, expected) < (1e-5 if rotates else 1e-4)
    assert not rotates or torch.equal(found[0], plain(inputs_embeds=x).last_hidden_state)


@by_conversion
def test_16_bits_are_rounded_less(convert):
    plain, x = new_model("llama"), random(2, 24, 128).to(BF16)
    exact = results(copy.deepcopy(plain).double(), x.double())
    triples = results(converted(convert, plain), x), results(plain, x), exact
    for actual, own, expected in zip(*triples, strict=True):
        assert actual.dtype == BF16
        assert relative_error(actual, expected) < 1.1 * relative_error(own, expected) + 1e-3


@pytest.mark.slow
@by_conversion
def test_compiles(convert):
    plain, x = new_model("llama", torch.float32), random(2, 16, 128)
    compiled = torch.compile(converted(convert, plain), fullgraph=True, backend="aot_eager")
    for actual, expected in zip(results(compiled, x), results(plain, x), strict=True):
        assert relative_error(actual, expected) < 1e-4


@by_conversion
def test_a_second_derivative_is_an_error(convert):
    model = converted(convert, new_model("llama", torch.float32))
    x = random(1, 4, 128).requires_grad_()
    y = model(inputs_embeds=x).last_hidden_state
    with pytest.raises(UnsupportedError, match="cannot be differentiated"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_go_with_each_other_and_with_other_conversions():
    model, x = new_model("qwen3_moe"), random(2, 24, 128).to(BF16)
    nn.convert_experts(model)
    nn.convert(model)
    for convert in CONVERSIONS.values():
        assert convert(model).converted
    again, expected = pickle.loads(pickle.dumps(model)), results(model, x)
    assert [type(module) for module in again.modules()] == [type(m) for m in model.modules()]
    assert all(map(torch.equal, results(again, x), expected))
    assert all(torch.isfinite(each).all() for each in expected)


@by_conversion
def test_filter_and_what_is_left_alone(convert):
    model = new_model("qwen3_moe")
    first = convert(model, lambda module, name: name.startswith("layers.0"))
    assert first.converted
    assert all(name.startswith("layers.0") for name in first.converted)
    assert set(first.left_alone.values()) == {"module_filter_fn does not pick it"}
    others = convert(model)
    assert set(others.converted) == set(first.left_alone)
    assert set(others.left_alone.values()) == {"it is converted already"}
    with pytest.raises(InvalidArgumentError, match=r"'model': expected (an RMSNorm|attention) "):
        convert(model)


@pytest.mark.parametrize("convert", [*CONVERSIONS.values(), nn.convert_experts, nn.convert])
def test_a_filter_that_picks_nothing_is_an_error(convert):
    model = new_model("qwen3_moe")
    before = str(model)
    with pytest.raises(InvalidArgumentError, match="'module_filter_fn': expected to pick"):
        convert(model, module_filter_fn=lambda *_: False)
    assert str(model) == before


@pytest.mark.parametrize(
    ("convert", "family", "part"),
    [
        (nn.convert_norms, "gemma2", "Gemma2RMSNorm"),
        (nn.convert_rotary, "gpt_oss", "GptOssAttention"),
        (nn.convert_rotary, "cohere", "CohereAttention"),  # whose halves are pairs of neighbours
        (nn.convert_rotary, "phi3", "Phi3Attention"),  # which rotates a part of a head
    ],
)
def test_what_is_written_otherwise_is_refused(convert, family, part):
    with pytest.raises(InvalidArgumentError, match=rf"{part} may compute.* in transformers \d"):
        convert(new_model(family))


def test_classes_are_changed_and_sources_read_in_one_file():
    for file in Path(octofold.__file__).parent.rglob("*.py"):
        found = re.findall(r"__class__ =|getsource|FunctionType|_getframe", file.read_text("utf-8"))
        assert not found or file.name == "patching.py", f"{file} has {found}"


@by_conversion
def test_others_are_refused(convert):
    with pytest.raises(InvalidArgumentError, match="with none"):
        convert(torch.nn.Linear(2, 2))
    attention = new_model("qwen3_moe").layers[0].self_attn
    for replaced in (attention, attention.q_norm, attention.k_norm):
        replaced.forward = types.MethodType(lambda self, x: x, replaced)
    with pytest.raises(InvalidArgumentError, match="may compute something else"):
        convert(attention)


def new_norm():
    norm = copy.deepcopy(new_model("qwen3_moe").layers[0].self_attn.q_norm)
    norm.weight = torch.nn.Parameter(torch.rand(128).to(BF16) + 0.5)
    return norm


@pytest.mark.parametrize("shape", [(40, 128), (2, 5, 4, 128), (0, 128)])
def test_a_norm_is_nearer_to_the_truth_than_its_own_forward(shape):
    plain = new_norm()
    norm = converted(nn.convert_norms, plain)
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
    norm = converted(nn.convert_norms, new_norm())
    x = random(2, 4, 6, 128).to(BF16)
    y, dx, dw = results(norm, x)
    moved = x.detach().requires_grad_()
    across = norm(moved.transpose(1, 2))
    gradient = gradient_of(y).transpose(1, 2)
    found = torch.autograd.grad(across, (moved, norm.weight), gradient)
    assert torch.equal(across.transpose(1, 2), y)
    assert torch.equal(found[0], dx)
    assert relative_error(found[1], dw) < 4e-3  # another order of rows


def test_where_a_norms_own_forward_runs():
    plain = new_norm()
    norm = converted(nn.convert_norms, plain)
    for x in (random(4, 128), random(128).to(BF16)):  # another dtype, no matrix
        assert torch.equal(norm(x), plain(x))
    x = random(3, 4, 128).to(BF16)
    assert torch.equal(torch.func.vmap(norm)(x), plain(x))
    found = torch.func.grad(lambda x: norm(x).sum())(x)
    assert torch.equal(found, torch.func.grad(lambda x: plain(x).sum())(x))


def rotate(*operands):
    own = modeling_llama.apply_rotary_pos_emb
    return octofold.nn.conversion.rotary._rotate(own, *operands)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("batch_of_tables", [1, 3])
def test_the_function_is_transformers(heads, batch_of_tables, rotations):
    own = modeling_llama.apply_rotary_pos_emb
    shape = [3, 10, 4, 32] if heads == 2 else [3, 4, 10, 32]
    few = [3, 10, 2, 32] if heads == 2 else [3, 2, 10, 32]
    q, k = random(*shape).requires_grad_(), random(*few).requires_grad_()
    cos, sin = (random(batch_of_tables, 10, 32) for _ in range(2))
    found, expected = rotate(q, k, cos, sin, heads), own(q, k, cos, sin, heads)
    gradients = [random(*y.shape) for y in expected]
    found = (*found, *torch.autograd.grad(found, (q, k), gradients))
    expected = (*expected, *torch.autograd.grad(expected, (q, k), gradients))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert rotations == [False, False, True, True]


def test_where_the_own_function_runs(rotations):
    own = modeling_llama.apply_rotary_pos_emb
    q, k, cos, sin = random(2, 4, 10, 32), random(2, 2, 10, 32), *random(2, 1, 10, 32)
    cases = [
        (q.half(), k.half(), cos, sin),  # other dtypes
        (q.double(), k.double(), cos.double(), sin.double()),
        (q[0], k[0], cos, sin),  # no batch
        (q, k, cos.clone().requires_grad_(), sin),
        (q, k, cos[:, :1], sin[:, :1]),  # one position for all
    ]
    for operands in cases:
        for one, other in zip(rotate(*operands, 1), own(*operands), strict=True):
            assert torch.equal(one, other)

    def gradient(function):
        return torch.func.grad(lambda q: function(q, k, cos, sin, 1)[0].square().sum())(q)

    assert torch.equal(gradient(rotate), gradient(own))
    assert not rotations


def test_names_that_are_replaced_later_hold(rotations, monkeypatch):
    model, x = converted(nn.convert_rotary, new_model("llama")), random(1, 5, 128).to(BF16)
    model(inputs_embeds=x)
    assert len(rotations) == 4
    rotated = []

    def other(q, k, cos, sin):
        rotated.append(q.shape)
        return q, k

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", other)
    model(inputs_embeds=x)
    assert len(rotations) == len(rotated) + 2 == 4


def test_caches_and_no_gradient():
    plain, x = new_model("llama", torch.float32), random(1, 9, 128)
    model = converted(nn.convert_rotary, plain)
    with torch.no_grad():
        first = model(inputs_embeds=x[:, :8], use_cache=True)
        last = model(inputs_embeds=x[:, 8:], past_key_values=first.past_key_values)
        expected = plain(inputs_embeds=x).last_hidden_state[:, 8:]
    assert relative_error(last.last_hidden_state, expected) < 1e-5
