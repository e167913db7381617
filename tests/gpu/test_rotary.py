"""Rotary embeddings on the GPU: the bits of the CPU backend, in any layout, again and in a graph;
and transformers' formula."""

import copy

import octofold
import pytest

from tests.gpu.gpu_support import (
    DEVICE,
    DTYPES,
    assert_same_bits,
    captured,
    needs,
    needs_gpu,
    normal,
    poison,
    torch,
)

rotary = octofold.ops.rotary
pytestmark = needs("rotary embeddings")

every_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
# Batch, tokens, heads, head_dim: of Qwen3, ragged ones, one pair, heads of several rounds.
SHAPES = ((1, 300, 32, 128), (2, 65, 4, 128), (3, 7, 5, 80), (2, 9, 3, 50), (1, 1, 1, 2))
WIDE = ((1, 3, 130, 256), (1, 20_001, 1, 64))


@pytest.fixture
def draw(generator):
    return lambda *shape, dtype: normal(generator, *shape).to(DTYPES[dtype])


def check(x, cos, sin):
    for inverse in (False, True):
        y = rotary(x, cos, sin, inverse=inverse)
        assert y.is_contiguous()
        expected = rotary(x.cpu(), cos.cpu(), sin.cpu(), inverse=inverse)
        assert_same_bits(y, expected.to(DEVICE))
        assert_same_bits(rotary(x, cos, sin, inverse=inverse), y)


@every_dtype
def test_bits_of_the_cpu(dtype, draw):
    for batch, tokens, heads, size in SHAPES + WIDE:
        x = draw(batch, tokens, heads, size, dtype=dtype)
        for tables in {1, batch}:
            check(x, *draw(2, tables, tokens, size, dtype=dtype))
        check(x[0], *draw(2, tokens, size, dtype=dtype))


@every_dtype
def test_any_layout(dtype, draw):
    x = draw(2, 6, 33, 64, dtype=dtype).transpose(1, 2)  # heads before tokens
    cos, sin = draw(2, 33, 96, dtype=dtype)[..., 16:80]
    check(x, cos, sin)
    check(x[..., 1:63], cos[:, 1:63], sin[:, 1:63])  # not aligned
    check(x[:, :, :1].expand(-1, -1, 6, -1), cos, sin)


@every_dtype
def test_reads_and_writes_nothing_beside(dtype, draw):
    """NaN around all operands, in memory that the result's is not."""
    for size in (64, 50):
        memory = poison(4 * 9 * 3 * size * 2, DTYPES[dtype])
        x = memory[: 9 * 3 * 2 * size].view(9, 3, 2 * size)[..., :size]
        x.copy_(draw(9, 3, size, dtype=dtype))
        cos, sin = draw(2, 9, size, dtype=dtype)
        y = rotary(x, cos, sin)
        assert not bool(y.isnan().any())
        assert_same_bits(y, rotary(x.contiguous(), cos, sin))


def test_is_transformers_formula(draw):
    x, (cos, sin) = draw(40, 8, 128, dtype="float32"), draw(2, 40, 128, dtype="float32")
    turned = torch.cat((-x[..., 64:], x[..., :64]), -1)
    assert_same_bits(rotary(x, cos, sin), x * cos.unsqueeze(1) + turned * sin.unsqueeze(1))


@needs_gpu
def test_in_a_graph(draw):
    x, (cos, sin) = draw(2, 50, 8, 128, dtype="bfloat16"), draw(2, 50, 128, dtype="bfloat16")
    expected = rotary(x, cos, sin)
    graph, y = captured(lambda: rotary(x, cos, sin))
    y.zero_()
    graph.replay()
    assert_same_bits(y, expected)


@every_dtype
def test_converted_attention(dtype, draw):
    """transformers' attention and its own function: but for roundings."""
    pytest.importorskip("transformers", minversion="5.0")
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, vocab_size=32)
    torch.manual_seed(0)
    plain = LlamaModel(config).to(DEVICE, DTYPES[dtype])
    model = copy.deepcopy(plain)
    octofold.nn.convert_rotary(model)
    x = draw(2, 48, 256, dtype=dtype)
    dy, results = draw(2, 48, 256, dtype=dtype), []
    for each in (model, plain):
        leaf = x.clone().requires_grad_()
        y = each(inputs_embeds=leaf, use_cache=False).last_hidden_state
        results.append((y, *torch.autograd.grad(y, leaf, dy)))
    limit = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for actual, expected in zip(*results, strict=True):
        actual, expected = actual.detach().double(), expected.detach().double()
        assert float((actual - expected).norm() / expected.norm()) < limit
