"""octofold.nn.convert_experts with FP8 weights, on every GPU; and of gpt-oss, whose weights lie in
another way."""

import copy

import octofold
import pytest

from tests.python import gpu_fakes
from tests.python.nn.layer_support import random, relative_error

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

from transformers import GptOssConfig, GptOssForCausalLM  # noqa: E402

from tests.python.nn.test_convert_experts import BF16, COMMON, MODELS, block_of, model_of  # noqa: E402

nn = octofold.nn


def gpt_oss():
    torch.manual_seed(0)
    sizes = {"intermediate_size": 192, "num_local_experts": 6, "num_experts_per_tok": 2}
    model = GptOssForCausalLM(GptOssConfig(**COMMON | sizes | {"head_dim": 64}))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.dim() > 1:
                tensor.normal_(std=(2 if "experts" in name else 1) * tensor.shape[-2] ** -0.5)
    return model


def laid_out(tensor):
    """A first layer of gpt-oss's, its bias or their gradients, as octofold.nn.Experts has them."""
    tensor = tensor.transpose(1, 2) if tensor.dim() == 3 else tensor
    return torch.cat((tensor[:, ::2], tensor[:, 1::2]), dim=1)


def test_gpt_oss():
    """The result of a block, beyond the limits of its gate too."""
    theirs = gpt_oss().model.layers[0].mlp
    mine = copy.deepcopy(theirs)
    report = nn.convert_experts(mine)
    assert report.converted == {"experts": "octofold.nn.Experts, recipe=blockwise"}
    assert mine.experts.activation == "swiglu-oss"
    assert torch.equal(mine.experts.gate_up_proj, laid_out(theirs.experts.gate_up_proj))
    assert torch.equal(mine.experts.down_proj, theirs.experts.down_proj.transpose(1, 2))
    assert mine.experts.down_proj_bias.requires_grad
    x = 4 * random(2, 40, 256)
    gate_up = torch.einsum("th,ehf->etf", x[0], theirs.experts.gate_up_proj)
    assert 0.02 < (gate_up.abs() > 7).float().mean() < 0.5
    assert 1e-3 < relative_error(mine(x)[0], theirs(x)[0]) < 0.1


def test_gradients_of_gpt_oss():
    theirs = gpt_oss().model.layers[0].mlp
    mine = copy.deepcopy(theirs)
    nn.convert_experts(mine)
    x, dy = 2 * random(60, 256), random(1, 60, 256)
    results = []
    for block in (mine, theirs):
        leaf = x[None].clone().requires_grad_()
        block(leaf)[0].backward(dy)
        results.append((leaf.grad, block))
    (dx, _), (their_dx, _) = results
    assert relative_error(dx, their_dx) < 0.12
    ours, others = mine.experts, theirs.experts
    pairs = {
        "gate_up_proj": laid_out(others.gate_up_proj.grad),
        "gate_up_proj_bias": laid_out(others.gate_up_proj_bias.grad),
        "down_proj": others.down_proj.grad.transpose(1, 2),
        "down_proj_bias": others.down_proj_bias.grad,
    }
    for name, expected in pairs.items():
        assert relative_error(getattr(ours, name).grad, expected) < 0.12, name
    assert relative_error(mine.router.weight.grad, theirs.router.weight.grad) < 0.2


def test_gpt_oss_whole():
    theirs = gpt_oss()
    mine = nn.convert_experts(copy.deepcopy(theirs)).model
    assert list(mine.state_dict()) == list(theirs.state_dict())
    tokens = torch.randint(0, 96, (2, 24))
    logits = [model(input_ids=tokens, labels=tokens).logits for model in (mine, theirs)]
    assert relative_error(*logits) < 0.3


@pytest.mark.parametrize("recipe", ["blockwise", "rowwise"])
@pytest.mark.parametrize("name", [*MODELS, "gpt_oss"])
def test_cast_once(name, recipe):
    """The weights of the recipe's format, and the bits of experts that cast them in each call."""
    block = gpt_oss().model.layers[0].mlp if name == "gpt_oss" else block_of(name)
    block.to(BF16)
    wide = nn.convert_experts(copy.deepcopy(block), recipe).model
    report = nn.convert_experts(block, recipe, weights="fp8", compute="native")
    granularity = {"blockwise": "128x128", "rowwise": "channel"}[recipe]
    experts = block.experts
    assert report.converted["experts"].endswith(f"recipe={recipe}, FP8 weights {granularity}")
    assert not [n for n, _ in experts.named_parameters() if "bias" not in n]
    assert experts.gate_up_proj.dtype == torch.float8_e4m3fn
    x, ids, share = random(30, 256, dtype=BF16), torch.randint(0, 6, (30, 2)), torch.rand(30, 2)
    with torch.no_grad():
        assert torch.equal(experts(x, ids, share), wide.experts(x, ids, share))


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
    assert type(block.shared_experts.up_proj) is nn.InferenceLinear


def test_a_whole_model_without_products(pretend):
    """Someone with an A100 does so: one call for experts, one for the rest, and answers."""
    theirs = model_of("qwen3_moe").requires_grad_(False).to(BF16)
    mine = copy.deepcopy(theirs)
    pretend("8.0")
    nn.convert_experts(mine)
    nn.convert(mine)
    tokens = torch.randint(0, 96, (2, 24))
    assert 1e-3 < relative_error(mine(tokens).logits, theirs(tokens).logits) < 0.2


def test_bad_arguments():
    block = block_of("mixtral")
    with pytest.raises(octofold.InvalidArgumentError, match="'weights': expected 'own' or 'fp8'"):
        nn.convert_experts(block, weights="bf16")
    with pytest.raises(octofold.InvalidArgumentError, match="'compute': expected one of auto"):
        nn.convert_experts(block, compute="fast")


@pytest.mark.parametrize("weights", ["own", "fp8"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_save_pretrained_writes_the_models_own_layout(name, weights, tmp_path):
    """And numbers, which its class reads."""
    pytest.importorskip("safetensors")
    model = (gpt_oss() if name == "gpt_oss" else model_of(name)).to(BF16)
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
    model = (gpt_oss() if name == "gpt_oss" else model_of(name)).to(BF16).eval()
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
    model = nn.convert_experts(gpt_oss()).model
    octofold.models.save(model, tmp_path / "kept")
    again = octofold.models.load(model_like(model), tmp_path / "kept")
    tokens = torch.randint(0, 96, (2, 24))
    assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_what_cannot_be_experts(tmp_path):
    model = nn.convert_experts(model_of("mixtral"), weights="fp8").model
    octofold.models.save(model, tmp_path / "kept")
    other = model_of("mixtral", intermediate_size=128)
    with pytest.raises(octofold.InvalidArgumentError, match="that can be Experts, got one of"):
        octofold.models.load(other, tmp_path / "kept")
    other.model.layers[0].mlp.experts = torch.nn.Linear(8, 8)
    with pytest.raises(octofold.InvalidArgumentError, match="that can be Experts, got Linear"):
        octofold.models.load(other, tmp_path / "kept")
