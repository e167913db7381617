"""FP8 weights of ours as a tensor of torchao's, with the real torchao, and through transformers'
TorchAoConfig and PEFT."""

import copy
import io
import subprocess
import sys

import octofold
import pytest
import torch
from octofold.integrations.torchao import OctofoldFp8WeightConfig, OctofoldTensor
from torchao.quantization import quantize_

from tests.python.nn.layer_support import relative_error

pytestmark = pytest.mark.filterwarnings("ignore:OctofoldTensor does not implement:UserWarning")

FORMATS = ["128x128", "1x128", "channel", "tensor", "e5m2 128x128"]
HALF = torch.bfloat16


def network(dtype=HALF, **options):
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 384), torch.nn.ReLU(), torch.nn.Linear(384, 200, bias=False)
    model = torch.nn.Sequential(*layers).to(dtype)
    if options:
        quantize_(model, OctofoldFp8WeightConfig(**options))
    return model


def exact(model, x):
    """In FP64 of the numbers that the codes stand for."""
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            weight = layer.weight.dequantize(torch.float32).detach().double()
            x = x @ weight.T
            x = x if layer.bias is None else x + layer.bias.detach().double()
        else:
            x = layer(x)
    return x


@pytest.mark.parametrize("format", FORMATS)
def test_the_codes_are_octofolds(format):
    plain, model = network(), network(format=format)
    scaled = octofold.quantize(plain[0].weight.detach(), format)
    assert model[0].weight.scaled.equals(scaled)
    x = torch.randn(5, 256).to(HALF)
    with torch.no_grad():
        bias = model[0].bias
        assert torch.equal(model[0](x), octofold.gemm_weight_only(x, scaled, bias=bias.detach()))


def test_what_is_printed_and_what_is_left():
    model = network(format="channel", compute="weight-only")
    text = "weight=OctofoldTensor(torch.float8_e4m3fn, channel, compute=weight-only)"
    assert text in repr(model)
    assert isinstance(model[0].weight, torch.nn.Parameter)
    assert isinstance(model[0].weight.data, OctofoldTensor)
    assert model[0].weight.dtype == HALF
    assert not model[0].weight.requires_grad
    assert model[0].bias.requires_grad


def test_gradients_by_input_and_bias():
    model = network(format="128x128")
    x = torch.randn(7, 256).to(HALF).requires_grad_()
    y = model(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    wide = x.detach().double().requires_grad_()
    bias = model[0].bias.detach().double()
    hidden = wide @ model[0].weight.dequantize(torch.float32).double().T + bias
    hidden.retain_grad()
    out = hidden.relu() @ model[2].weight.dequantize(torch.float32).double().T
    out.backward(dy.double())
    assert relative_error(x.grad, wide.grad) < 2e-2  # a ReLU near 0 may be on its other side
    assert relative_error(model[0].bias.grad, hidden.grad.sum(0)) < 2e-2
    assert model[0].weight.grad is None


@pytest.mark.parametrize("compute", ["weight-only", "native"])
def test_autocast(compute):
    model = network(torch.float32, compute=compute)
    x = torch.randn(5, 256)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        y = model(x)
    assert y.dtype == HALF
    assert relative_error(y, exact(model, x.double())) < 0.06
    if compute == "weight-only":  # x of 16 bits then, for which there are products of its codes
        first = model[0]
        with torch.no_grad(), torch.autocast("cpu", HALF):
            y = first(x)
        bias = first.bias.detach()
        assert torch.equal(y, octofold.gemm_weight_only(x.to(HALF), first.weight.scaled, bias=bias))


@pytest.mark.parametrize("compute", ["weight-only", "native"])
def test_compile(compute):
    model = network(compute=compute)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (5, 33):
        x = torch.randn(rows, 256).to(HALF).requires_grad_()
        other = x.detach().clone().requires_grad_()
        y, z = model(x), compiled(other)
        assert torch.equal(y, z)
        y.sum().backward()
        z.sum().backward()
        assert relative_error(other.grad, x.grad.double()) < 1e-2


@pytest.mark.parametrize("format", FORMATS)
def test_torch_save_and_load(format):
    model, x = network(format=format), torch.randn(5, 256).to(HALF)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    whole = io.BytesIO()
    torch.save(model, whole)
    whole.seek(0)
    assigned = torch.load(whole, weights_only=False)
    assert repr(assigned) == repr(model)
    assigned.load_state_dict(state, assign=True)
    copied = network(format=format)
    with torch.no_grad():
        copied[0].weight.qdata.zero_()
        copied.load_state_dict(state)
        for other in (assigned, copied, copy.deepcopy(model)):
            assert other[0].weight.scaled.equals(model[0].weight.scaled)
            assert torch.equal(other(x), model(x))


def test_a_state_of_another_format_is_refused():
    state = network(format="channel").state_dict()
    with pytest.raises(RuntimeError, match="metadata mismatch"):
        network(format="128x128").load_state_dict(state)


def test_torch_load_in_a_process_that_has_imported_nothing_else(tmp_path):
    torch.save(network(format="channel").state_dict(), tmp_path / "state.pt")
    code = "import torch, octofold.integrations.torchao as t; s = torch.load('state.pt'); "
    code += "assert type(s['0.weight']) is t.OctofoldTensor; print(s['0.weight'].granularity)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "channel"


def test_other_dtypes_change_the_name_alone():
    model = network(format="128x128")
    before = model[0].weight.scaled
    half = copy.deepcopy(model).half()
    assert half[0].weight.dtype == torch.float16
    assert half[0].weight.scaled.equals(before)
    assert half(torch.randn(3, 256).half()).dtype == torch.float16
    meta = copy.deepcopy(model).to("meta")
    assert meta[0].weight.device.type == "meta"
    assert meta(torch.empty(3, 256, dtype=HALF, device="meta")).shape == (3, 200)


@pytest.mark.parametrize("format", FORMATS)
def test_shards_of_rows_and_of_columns_are_views(format):
    weight = network(format=format)[0].weight.data  # [384, 256]
    numbers = weight.dequantize()
    x = torch.randn(5, 256).to(HALF)
    with torch.no_grad():
        whole = torch.nn.functional.linear(x.float(), weight)
        parts = [torch.nn.functional.linear(x.float(), part) for part in weight.chunk(3)]
        assert torch.equal(torch.cat(parts, 1), whole)
        total = 0
        for first in (0, 128):
            part = weight.narrow(1, first, 128)
            assert torch.equal(part.dequantize(), numbers[:, first : first + 128])
            total = total + torch.nn.functional.linear(x[:, first : first + 128].float(), part)
        assert relative_error(total, whole.double()) < 1e-5
    assert weight[128:256].qdata.data_ptr() == weight.qdata.data_ptr() + 128 * 256
    assert torch.equal(weight[-128:].dequantize(), numbers[-128:])


def test_shards_that_cut_a_scale_are_refused():
    weight = network(format="128x128")[0].weight.data
    with pytest.raises(octofold.InvalidArgumentError, match="rows that are multiples of 128"):
        weight[:100]
    with pytest.raises(octofold.InvalidArgumentError, match="here 128 or 256"):
        weight[:, 192:]
    with pytest.raises(octofold.InvalidArgumentError, match="'step': expected 1, got 2"):
        weight[::2]


@pytest.mark.parametrize("format", FORMATS)
def test_embeddings(format):
    torch.manual_seed(0)
    layer = torch.nn.Embedding(300, 256).to(HALF)
    quantize_(layer, OctofoldFp8WeightConfig(format), filter_fn=lambda module, name: True)
    ids = torch.randint(0, 300, (4, 7))
    assert torch.equal(layer(ids), layer.weight.dequantize()[ids])


def test_bad_input():
    with pytest.raises(octofold.InvalidArgumentError, match="'format': expected at most one word"):
        OctofoldFp8WeightConfig("3x3")
    with pytest.raises(
        octofold.InvalidArgumentError, match="expected one of auto, native, weight-only"
    ):
        OctofoldFp8WeightConfig(compute="int8")
    with pytest.raises(
        octofold.InvalidArgumentError, match=r"expected \[out, in\], got \[4, 8, 8\]"
    ):
        OctofoldTensor.from_weight(torch.randn(4, 8, 8), OctofoldFp8WeightConfig())
    model = network(format="channel")
    with pytest.raises(octofold.InvalidArgumentError, match="'x': expected"):
        model(torch.randn(3, 255).to(HALF))
    with pytest.raises(octofold.InvalidArgumentError, match="the only OctofoldTensor"):
        torch.nn.functional.linear(model[0].weight, torch.randn(3, 256).to(HALF))
    with pytest.raises(NotImplementedError, match=r"aten\.add"):
        model[0].weight + 1


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
    assert isinstance(weight, OctofoldTensor)
    assert not isinstance(model.lm_head.weight, OctofoldTensor)
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
        assert isinstance(weight, OctofoldTensor)
        assert not torch.equal(weight.qdata.view(torch.uint8), codes.view(torch.uint8))
        assert relative_error(merged(ids).logits, logits) < 0.05
