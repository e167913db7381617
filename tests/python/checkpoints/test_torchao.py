"""torchao's Float8Tensor in safetensors: we read what it wrote. The families' matrix has what it
reads."""

import octofold
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")
from safetensors.torch import save_file  # noqa: E402
from torchao.prototype.safetensors.safetensors_support import (  # noqa: E402
    flatten_tensor_state_dict,
)
from torchao.quantization import (  # noqa: E402
    Float8Tensor,
    Float8WeightOnlyConfig,
    PerBlock,
    PerRow,
    PerTensor,
    quantize_,
)

GRANULARITIES = {"channel": PerRow(), "tensor": PerTensor(), "128x128": PerBlock([128, 128])}


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_we_read_what_it_wrote(tmp_path, granularity):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 384), torch.nn.Linear(384, 128)).bfloat16()
    if granularity == "128x128":
        for layer in model:
            weight = Float8Tensor.from_hp(layer.weight.data, granularity=GRANULARITIES[granularity])
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    else:
        quantize_(model, Float8WeightOnlyConfig(granularity=GRANULARITIES[granularity]))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors, metadata = flatten_tensor_state_dict(state)
    file = tmp_path / "model.safetensors"
    save_file(tensors, file, metadata=metadata)
    checkpoint = octofold.load_checkpoint(file)
    assert checkpoint.family == "torchao"
    assert set(checkpoint) == set(state)
    for name in ("0.weight", "1.weight"):
        assert checkpoint[name].granularity == granularity
        assert torch.equal(checkpoint[name].dequantize("bfloat16"), state[name].dequantize())
        assert torch.equal(checkpoint[name].data, state[name].qdata)
    assert torch.equal(checkpoint["1.bias"], state["1.bias"])
