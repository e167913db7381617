"""octofold.nn.convert_experts: blocks of transformers against their own modules, with FP8 weights
on every GPU, of gpt-oss, whose weights lie in another way, and saved."""

import copy

import octofold
import pytest
import torch
from octofold import InvalidArgumentError, ScaledTensor

from tests.python import gpu_fakes
from tests.python.judge import assert_same
from tests.python.nn.layer_support import random, relative_error, step, transformers_model

pytest.importorskip("transformers", minversion="5.0")

nn = octofold.nn
BF16 = torch.bfloat16
EXPERTS = {"num_experts": 8, "num_local_experts": 8, "n_routed_experts": 16}
MODELS = {
    "mixtral": {},
    "qwen3_moe": {"num_experts_per_tok": 4, "norm_topk_prob": True},
    "deepseek_v3": {"num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "head_dim": 16},
}
every_family = pytest.mark.parametrize("name", [*MODELS, "gpt_oss"])


def model_of(name, **options):
    sizes = {"hidden_size": 256, "vocab_size": 96} | EXPERTS | MODELS.get(name, {})
    model = transformers_model(name, **sizes | options)
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if tensor.dim() > 1:
                inputs = tensor.shape[-2 if name == "gpt_oss" else -1]
                tensor.normal_(std=inputs**-0.5)
                if name == "gpt_oss" and "experts" in key:
                    tensor.mul_(2)  # some beyond the limits of its gate
            elif key.endswith("e_score_correction_bias"):
                tensor.normal_(std=0.1)
    return model


def block_of(name, **options):
    """The block of experts of the last layer, for x [..., 256]."""
    return copy.deepcopy(model_of(name, **options).model.layers[-1].mlp)


def description(module):
    return {name: (t.shape, t.dtype) for name, t in module.state_dict().items()}


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mixtral", {}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("deepseek_v3", {}),
        ("deepseek_v3", {"norm_topk_prob": False, "n_group": 1, "topk_group": 1}),
        ("mixtral", {"hidden_act": "gelu_pytorch_tanh"}),
    ],
)
def test_block(name, options, recipe):
    """The same experts with the same weights; results and gradients as near as FP8 is; the same
    parameters under the same names."""
    theirs = block_of(name, **options)
    mine = copy.deepcopy(theirs)
    parameters = dict(mine.named_parameters())
    assert nn.convert_experts(mine, recipe).model is mine
    assert description(mine) == description(theirs)
    assert all(p is parameters[key] for key, p in mine.named_parameters())
    assert type(mine.experts) is nn.Experts
    assert mine.experts.recipe == getattr(nn.recipes, recipe)
    assert isinstance(mine.gate, type(theirs.gate))
    x = random(2, 40, 256)
    with torch.no_grad():
        logits, weights, ids = mine.gate(x)
        their_logits, their_weights, their_ids = theirs.gate(x)
    assert torch.equal(logits, their_logits)
    order, their_order = ids.argsort(-1), their_ids.argsort(-1)
    assert torch.equal(ids.gather(-1, order).long(), their_ids.gather(-1, their_order))
    assert torch.allclose(weights.gather(-1, order), their_weights.gather(-1, their_order))
    for left, right in zip(step(mine, x), step(theirs, x), strict=True):
        assert left.shape == right.shape
        assert 1e-3 < relative_error(left, right) < 0.1
    assert_same(step(copy.deepcopy(mine), x), step(mine, x))


@every_family
def test_model(name):
    """Whole: logits, loss and what routers put out, recorded as before; other linear layers by
    convert(); files of the model as it was, but for the layout of gpt-oss."""
    theirs = model_of(name)
    mine = nn.convert_experts(copy.deepcopy(theirs)).model
    tokens = torch.randint(0, 96, (2, 24))
    options = {"input_ids": tokens, "labels": tokens}
    records = name in ("mixtral", "qwen3_moe")
    if records:
        options["output_router_logits"] = True
    results = [model(**options) for model in (mine, theirs)]
    assert relative_error(results[0].logits, results[1].logits) < (
        0.3 if name == "gpt_oss" else 0.2
    )
    if records:
        assert len(results[0].router_logits) == len(results[1].router_logits) == 2
        assert torch.equal(results[0].router_logits[0], results[1].router_logits[0])
        assert torch.allclose(results[0].aux_loss, results[1].aux_loss, rtol=0.1)
    results[0].loss.backward()
    for key, parameter in mine.named_parameters():
        assert parameter.grad is not None, key
    assert list(mine.state_dict()) == list(theirs.state_dict())
    if name == "gpt_oss":
        return
    assert description(mine) == description(theirs)
    mine.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert torch.equal(mine(tokens).logits, results[0].logits)
    nn.convert(mine, module_filter_fn=lambda _, fqn: fqn != "lm_head")
    assert description(mine) == description(theirs)
    assert relative_error(mine(tokens).logits, results[1].logits) < 0.4


def test_filter_and_experts_alone():
    model = nn.convert_experts(
        model_of("mixtral"), module_filter_fn=lambda _, fqn: fqn == "model.layers.1.mlp.experts"
    ).model
    first, second = (layer.mlp for layer in model.model.layers)
    assert type(second.experts) is nn.Experts
    assert type(first.experts).__name__ == "MixtralExperts"
    x = random(7, 256)
    alone = nn.convert_experts(first.experts).model
    assert type(alone) is nn.Experts
    assert alone.gate_up_proj is first.experts.gate_up_proj
    _, weights, ids = first.gate(x)
    assert relative_error(alone(x, ids, weights), first.experts(x, ids, weights)) < 0.1


def test_fp8_experts():
    """Experts of an FP8 checkpoint, as transformers holds it, keep the bytes that came."""
    from transformers.integrations.finegrained_fp8 import FP8Experts
    from transformers.integrations.moe import use_experts_implementation

    config = model_of("qwen3_moe").config
    config.moe_intermediate_size = 256
    theirs = use_experts_implementation(type("Experts", (FP8Experts,), {}))(
        config, block_size=(128, 128)
    )
    weights = {}
    for key in ("gate_up_proj", "down_proj"):
        wide = random(*getattr(theirs, key).shape) / 16
        cast = octofold.quantize(wide, "128x128")
        scale = cast.scale.view(getattr(theirs, f"{key}_scale_inv").shape)
        getattr(theirs, key).data, getattr(theirs, f"{key}_scale_inv").data = cast.data, scale
        weights[key] = ScaledTensor(cast.data, scale, "128x128")
    type(theirs).__module__ = "transformers.integrations.finegrained_fp8"
    mine = nn.convert_experts(theirs).model
    assert type(mine) is nn.Experts
    assert list(mine.state_dict()) == ["gate_up_proj", "down_proj"]
    x, ids = random(9, 256, dtype=BF16), torch.randint(0, 8, (9, 2))
    share = torch.rand(9, 2)
    expected = octofold.experts(x, ids, share, weights["gate_up_proj"], weights["down_proj"])
    assert torch.equal(mine(x, ids, share), expected)


def laid_out(tensor):
    """A first layer of gpt-oss's, its bias or their gradients, as octofold.nn.Experts has them."""
    tensor = tensor.transpose(1, 2) if tensor.dim() == 3 else tensor
    return torch.cat((tensor[:, ::2], tensor[:, 1::2]), dim=1)


def test_gpt_oss():
    """The result and the gradients of a block, beyond the limits of its gate too."""
    theirs = block_of("gpt_oss")
    mine = copy.deepcopy(theirs)
    report = nn.convert_experts(mine)
    assert report.converted == {"experts": "octofold.nn.Experts, recipe=blockwise"}
    assert mine.experts.activation == "swiglu-oss"
    assert torch.equal(mine.experts.gate_up_proj, laid_out(theirs.experts.gate_up_proj))
    assert torch.equal(mine.experts.down_proj, theirs.experts.down_proj.transpose(1, 2))
    assert mine.experts.down_proj_bias.requires_grad
    x, dy = 2 * random(1, 80, 256), random(1, 80, 256)
    gate_up = torch.einsum("th,ehf->etf", x[0], theirs.experts.gate_up_proj)
    assert 0.02 < (gate_up.abs() > 7).float().mean() < 0.5
    (y, dx), (their_y, their_dx) = (results_of(block, x, dy) for block in (mine, theirs))
    assert 1e-3 < relative_error(y, their_y) < 0.1
    assert relative_error(dx, their_dx) < 0.13
    ours, others = mine.experts, theirs.experts
    pairs = {
        "gate_up_proj": laid_out(others.gate_up_proj.grad),
        "gate_up_proj_bias": laid_out(others.gate_up_proj_bias.grad),
        "down_proj": others.down_proj.grad.transpose(1, 2),
        "down_proj_bias": others.down_proj_bias.grad,
    }
    for name, expected in pairs.items():
        assert relative_error(getattr(ours, name).grad, expected) < 0.13, name
    assert relative_error(mine.router.weight.grad, theirs.router.weight.grad) < 0.2


def results_of(block, x, dy):
    """The result and the gradient by x."""
    leaf = x.clone().requires_grad_()
    y = block(leaf)[0].view_as(x)
    y.backward(dy)
    return y.detach(), leaf.grad


@pytest.mark.parametrize("name", gpu_fakes.GPUS)
def test_on_each_gpu(name, pretend):
    """Trained experts are left where there are no grouped products, frozen ones get FP8 weights."""
    native = name in gpu_fakes.NATIVE
    trained = block_of("mixtral").to(BF16)
    frozen = copy.deepcopy(trained).requires_grad_(False)
    cast = copy.deepcopy(trained)
    x = random(1, 30, 256, dtype=BF16)
    exact = trained(x)
    pretend(name)
    dtype = torch.float16 if name == "7.5" else BF16
    report = nn.convert_experts(trained)
    assert (type(trained.experts) is nn.Experts) == native
    assert ("its products stay in high precision" in str(report)) != native
    reports = {
        "frozen": nn.convert_experts(frozen),
        "cast": nn.convert_experts(cast, weights="fp8"),
    }
    for kind, block in (("frozen", frozen), ("cast", cast)):
        assert type(block.experts) is nn.Experts
        text = reports[kind].converted["experts"]
        assert ("FP8 weights 128x128" in text) == (not native or kind == "cast")
        assert ("weight-only here" in text) == (not native)
        assert ("for float16 alone" in text) == (name == "7.5")
        block.gate.to(dtype)
        error = relative_error(block(x.to(dtype)), exact)
        assert (0.052 if native else 0.03) < error < (0.08 if native else 0.052)


def test_shared_experts_are_left_to_convert(pretend):
    block = block_of("deepseek_v3").requires_grad_(False)
    shared = block.shared_experts
    pretend("8.0")
    report = nn.convert_experts(block)
    assert block.shared_experts is shared
    assert "left to octofold.nn.convert()" in report.left_alone["shared_experts"]
    nn.convert(block)
    assert block.shared_experts.up_proj.weight.compute == "native"


@pytest.mark.parametrize("weights", ["own", "fp8"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_save_pretrained_writes_the_models_own_layout(name, weights, tmp_path):
    """And numbers, which its class reads."""
    pytest.importorskip("safetensors")
    model = model_of(name).to(BF16)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    nn.convert_experts(model, weights=weights)
    codes = {key: tensor.dtype for key, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path)
    assert {key: tensor.dtype for key, tensor in model.state_dict().items()} == codes
    again, found = type(model).from_pretrained(tmp_path, dtype=BF16, output_loading_info=True)
    assert not any(found.values()), found
    for key, tensor in again.state_dict().items():
        if weights == "own" or "experts" not in key or key.endswith("bias"):
            assert torch.equal(tensor, before[key]), key
        else:
            assert 1e-3 < relative_error(tensor, before[key]) < 0.04, key


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_a_model_kept_as_a_folder(name, recipe, tmp_path, pretend):
    """octofold.models.save on a GPU without products, and load on Hopper."""
    pytest.importorskip("safetensors")
    model = model_of(name).to(BF16).eval()
    nn.convert_experts(model, recipe, weights="fp8")
    nn.convert_weight_only(model)
    tokens = torch.randint(0, 96, (2, 24))
    with torch.no_grad():
        native = model(tokens).logits
    pretend("8.0")
    octofold.models.save(model, tmp_path / "kept")
    again = octofold.models.load(type(model), tmp_path / "kept")
    with torch.no_grad():
        exact = again(tokens).logits
        assert not torch.equal(exact, native)
        pretend("9.0")
        again = octofold.models.load(model_like(model).to(BF16).eval(), tmp_path / "kept")
        assert torch.equal(again(tokens).logits, native)
    same = model.state_dict()
    assert list(same) == list(again.state_dict())
    for key, tensor in again.state_dict().items():
        assert torch.equal(tensor.view(-1).view(torch.uint8), same[key].view(-1).view(torch.uint8))


def model_like(model):
    return type(model)(model.config)


def test_gpt_oss_in_high_precision_is_kept_too(tmp_path):
    model = nn.convert_experts(model_of("gpt_oss")).model
    octofold.models.save(model, tmp_path / "kept")
    again = octofold.models.load(model_like(model), tmp_path / "kept")
    tokens = torch.randint(0, 96, (2, 24))
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_what_cannot_be_experts(tmp_path):
    model = nn.convert_experts(model_of("mixtral"), weights="fp8").model
    octofold.models.save(model, tmp_path / "kept")
    other = model_of("mixtral", intermediate_size=128)
    with pytest.raises(InvalidArgumentError, match="that can be Experts, got one of"):
        octofold.models.load(other, tmp_path / "kept")
    other.model.layers[0].mlp.experts = torch.nn.Linear(8, 8)
    with pytest.raises(InvalidArgumentError, match="that can be Experts, got Linear"):
        octofold.models.load(other, tmp_path / "kept")


def test_bad_arguments():
    block = block_of("mixtral")
    for options, message in (
        ({"recipe": "rowwise_with_gw_hp"}, "'recipe': expected one whose products are all"),
        ({"weights": "bf16"}, "'weights': expected 'own' or 'fp8'"),
        ({"compute": "fast"}, "'compute': expected one of auto"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            nn.convert_experts(block, **options)
    for other in (torch.nn.Linear(8, 8), block.gate):
        with pytest.raises(InvalidArgumentError, match="'model': expected experts that hold"):
            nn.convert_experts(other)
    nn.convert_experts(block)
    with pytest.raises(InvalidArgumentError, match="'model': expected experts that hold"):
        nn.convert_experts(block)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS])
def test_compiles_whole(name):
    torch.compiler.reset()
    block, x = nn.convert_experts(block_of(name)).model, random(2, 40, 256)
    compiled = torch.compile(copy.deepcopy(block), fullgraph=True, backend="aot_eager")
    assert_same(step(compiled, x), step(block, x))
