"""octofold.nn.convert_experts: which families of transformers it takes, and why not others."""

import re
from pathlib import Path

import octofold
import pytest
import torch
from octofold import InvalidArgumentError

from tests.project.code_blocks import blocks
from tests.python.nn.layer_support import random, relative_error, transformers_model

pytest.importorskip("transformers", minversion="5.0")

PAGE = Path(__file__).parents[3] / "docs" / "experts.md"
FAMILIES = {
    "AFMoE": "afmoe",
    "Aria": "aria_text",
    "DeepSeek-V2": "deepseek_v2",
    "DeepSeek-V3": "deepseek_v3",
    "dots1": "dots1",
    "ERNIE-4.5": "ernie4_5_moe",
    "EXAONE": "exaone_moe",
    "FlexOlmo": "flex_olmo",
    "GLM-4": "glm4_moe",
    "GLM-4-Lite": "glm4_moe_lite",
    "gpt-oss": "gpt_oss",
    "Granite": "granitemoe",
    "Granite-Shared": "granitemoeshared",
    "Hunyuan-V1": "hunyuan_v1_moe",
    "HY-V3": "hy_v3",
    "MiniMax": "minimax",
    "MiniMax-M2": "minimax_m2",
    "Mixtral": "mixtral",
    "OLMoE": "olmoe",
    "Phi-MoE": "phimoe",
    "Qwen2-MoE": "qwen2_moe",
    "Qwen3-MoE": "qwen3_moe",
    "Solar-Open": "solar_open",
}


def experts_of(model):
    return {name: m for name, m in model.named_modules() if type(m).__name__.endswith("Experts")}


@pytest.mark.parametrize("family", FAMILIES.values())
def test_experts_of_a_family(family):
    model = transformers_model(family)
    theirs = experts_of(model)
    x, share = random(24, 128), torch.rand(24, 2)
    ids = torch.rand(24, 4).argsort(-1)[:, :2]
    expected = {}
    with torch.no_grad():
        for name, module in theirs.items():
            for weight in module.parameters():
                weight.normal_(std=weight.shape[-1] ** -0.5)
            expected[name] = module(x, ids, share)
    octofold.nn.convert_experts(model)
    assert expected
    for name, value in expected.items():
        mine = model.get_submodule(name)
        assert type(mine) is octofold.nn.Experts
        with torch.no_grad():
            assert 1e-3 < relative_error(mine(x, ids, share), value) < 0.1


@pytest.mark.filterwarnings("ignore")  # what transformers warns of as it loads
def test_blocks_of_the_page_run_in_order(monkeypatch):
    names = {"monkeypatch": monkeypatch}
    models = []
    for block in blocks(PAGE):
        if block.language == "python" and (not block.needs_gpu or torch.cuda.is_available()):
            exec(block.given, names)
            exec(block.compiled(), names)
            models += [names["model"]] if "model" in names else []
    assert names["y"].shape == names["x"].shape
    qwen, gpt_oss = models[0], models[-1]
    for model in models:
        assert all(type(m) is octofold.nn.Experts for m in experts_of(model).values())
    assert type(qwen.lm_head) is torch.nn.Linear  # left alone, as the report says
    assert type(gpt_oss).__name__ == "GptOssForCausalLM"
    assert isinstance(names["experts"].gate_up_proj, octofold.nn.Fp8Weight)


def test_the_page_names_them():
    (line,) = [text for text in PAGE.read_text().splitlines() if text.startswith("The experts of ")]
    named = re.match(r"The experts of (.*?) were tried", line).group(1)
    names = named.replace(" and ", ", ").split(", ")
    assert sorted(names) == sorted(FAMILIES)


@pytest.mark.parametrize(
    ("family", "reasons"),
    [
        (
            "llama4_text",
            ["Llama4TextExperts: it lacks the marks", "transposed", ": model.layers.0"],
        ),
        ("deepseek_v4", ["DeepseekV4Experts._apply_gate", "limit="]),
        ("nemotron_h", ["no gate"]),
    ],
)
def test_refusals_say_why(family, reasons):
    model = transformers_model(family)
    with pytest.raises(InvalidArgumentError, match="'model': expected experts that hold") as raised:
        octofold.nn.convert_experts(model)
    assert all(reason in str(raised.value) for reason in reasons), str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("has_gate", False, "it has no gate"),
        ("is_concatenated", False, "gate and up are interleaved"),
        ("_is_expert_parallel", True, "its experts are spread over devices"),
        ("has_post_expert_norm", True, "each expert's result is normed"),
        ("swiglu_limit", 7.0, "its gate has swiglu_limit=7.0"),
        ("activation_scheme", "static", "its activations have static scales"),
        ("act_fn", torch.nn.ReLU(), "its gate is ReLU"),
    ],
)
def test_each_mark_is_named(name, value, reason):
    model = transformers_model("mixtral")
    for module in experts_of(model).values():
        setattr(module, name, value)
    with pytest.raises(InvalidArgumentError) as raised:
        octofold.nn.convert_experts(model)
    assert f"MixtralExperts: {reason}" in str(raised.value)
