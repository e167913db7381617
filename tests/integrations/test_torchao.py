"""octofold.nn.Fp8Weight by the real torchao, and through transformers'
TorchAoConfig and PEFT."""

import subprocess
import sys

import octofold
import pytest
import torch
from octofold.integrations.torchao import OctofoldFp8WeightConfig
from octofold.nn import Fp8Weight
from torchao.quantization import quantize_

from tests.python.nn.layer_support import relative_error

HALF = torch.bfloat16


def network(dtype=HALF, **options):
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 384), torch.nn.ReLU(), torch.nn.Linear(384, 200, bias=False)
    model = torch.nn.Sequential(*layers).to(dtype)
    if options:
        quantize_(model, OctofoldFp8WeightConfig(**options))
    return model


def test_the_config_makes_octofolds_weights():
    plain, model = network(), network(format="e5m2 channel", compute="weight-only")
    weight = model[0].weight
    assert isinstance(weight, Fp8Weight)
    assert isinstance(weight, torch.nn.Parameter)
    assert weight.scaled.equals(octofold.quantize(plain[0].weight.detach(), "e5m2 channel"))
    assert (weight.compute, weight.dtype) == ("weight-only", HALF)
    text = "weight=Fp8Weight([384, 256], torch.float8_e5m2, channel, compute=weight-only)"
    assert text in repr(model)
    assert model[0].bias.requires_grad
    layer = torch.nn.Embedding(300, 256)
    quantize_(layer, OctofoldFp8WeightConfig(), filter_fn=lambda module, name: True)
    assert isinstance(layer.weight, Fp8Weight)


def test_torch_load_in_a_process_that_has_imported_nothing_else(tmp_path):
    torch.save(network(format="channel").state_dict(), tmp_path / "state.pt")
    code = "import torch, octofold.nn as nn; s = torch.load('state.pt'); "
    code += "assert type(s['0.weight']) is nn.Fp8Weight; print(s['0.weight'].granularity)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "channel"


def test_bad_input():
    with pytest.raises(octofold.InvalidArgumentError, match="'format': expected at most one word"):
        OctofoldFp8WeightConfig("3x3")
    with pytest.raises(
        octofold.InvalidArgumentError, match="expected one of auto, native, weight-only, copy"
    ):
        OctofoldFp8WeightConfig(compute="int8")


@pytest.fixture
def llama(saved):
    return saved("Llama")[0]


def loaded(folder, **options):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=HALF, **options)


def test_transformers(llama, tmp_path):
    from transformers import TorchAoConfig

    config = TorchAoConfig(OctofoldFp8WeightConfig("channel"))
    plain, model = loaded(llama), loaded(llama, quantization_config=config)
    weight = model.model.layers[0].mlp.up_proj.weight
    assert isinstance(weight, Fp8Weight)
    assert not isinstance(model.lm_head.weight, Fp8Weight)
    assert model.hf_quantizer.is_trainable
    ids = torch.randint(0, 96, (2, 16))
    with torch.no_grad():
        logits = model(ids).logits
        assert relative_error(logits, plain(ids).logits.double()) < 0.1
        model.save_pretrained(tmp_path)
        again = loaded(tmp_path)
        assert again.model.layers[0].mlp.up_proj.weight.scaled.equals(weight.scaled)
        assert torch.equal(again(ids).logits, logits)
    tokens = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, pad_token_id=0
    )
    assert tokens.shape == (2, 20)


def test_peft_trains_adapters_over_it(llama):
    peft = pytest.importorskip("peft")
    from transformers import TorchAoConfig

    quantized = TorchAoConfig(OctofoldFp8WeightConfig())
    model = loaded(llama, quantization_config=quantized)
    frozen = model.model.layers[0].mlp.up_proj.weight.scaled
    codes = frozen.data.clone()
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["up_proj"]))
    model = model.float()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    ids = torch.randint(0, 96, (4, 32), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    assert torch.equal(frozen.data.view(torch.uint8), codes.view(torch.uint8))
    with torch.no_grad():
        logits = model(ids).logits.double()
        merged = model.merge_and_unload()
        weight = merged.model.layers[0].mlp.up_proj.weight
        assert isinstance(weight, Fp8Weight)
        assert not torch.equal(weight.codes.view(torch.uint8), codes.view(torch.uint8))
        assert relative_error(merged(ids).logits, logits) < 0.05
