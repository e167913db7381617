"""Rules of Octofold in every server, by the server's own layers with their weights loaded. An
environment has one server; <server>_support.py makes its layers."""

import importlib
import importlib.util

import octofold
import pytest
import torch
from octofold.integrations import server_weights
from octofold.integrations.hosts import HOSTS

from tests.integrations.serving_support import (
    EXPERTS,
    HIDDEN,
    INNER,
    assert_product,
    cast,
    experts_of,
    load,
    load_experts,
    quantized,
    random,
    routed,
    values,
)
from tests.python.nn.layer_support import relative_error

NAME = "vllm" if importlib.util.find_spec("vllm") else "sglang"
host = importlib.import_module(f"tests.integrations.{NAME}_support")
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture
def server(plugged_in):
    return host


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "octofold is switched off by OCTOFOLD_INTEGRATIONS=0"),
        ("comfyui, torchao", "switched off by OCTOFOLD_INTEGRATIONS=comfyui, torchao"),
        ("vlm", "OCTOFOLD_INTEGRATIONS: expected 0, or names of vllm"),
    ],
)
def test_switched_off(untouched, monkeypatch, said, text, words):
    monkeypatch.setenv("OCTOFOLD_INTEGRATIONS", text)
    host.load_plugins()
    assert not host.is_in()
    assert words in said.text


def test_another_version(untouched, monkeypatch, said):
    found = HOSTS[NAME].too_new
    monkeypatch.setattr("importlib.metadata.version", lambda name: found)
    host.load_plugins()
    assert not host.is_in()
    assert [record.levelname for record in said.records] == ["WARNING"]
    sentence = f"is for {HOSTS[NAME].wanted}, found {NAME} {found}: nothing was changed"
    assert sentence in said.text


@DTYPES
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 384), (300, 200), (136, 72)])
def test_blocks(server, dtype, inputs, outputs, with_bias):
    """Any sizes; without tokens, and with leading dimensions."""
    weight = quantized("128x128", outputs, inputs)
    with server.model_of(dtype):
        bias = random(outputs, dtype=dtype) if with_bias else None
        layer = server.linear(weight, bias)
        for shape in ((1,), (33,), (2, 5), (0,)):
            x = random(*shape, inputs, dtype=dtype)
            y, _ = layer(x)
            assert y.shape == (*shape, outputs)
            assert y.dtype == dtype
            if x.numel():
                assert_product(y, cast(x, "1x128"), values(weight), bias)


@pytest.mark.parametrize("capability", [(9, 0), (8, 0)])
@pytest.mark.parametrize("rank", range(4))
def test_parts_that_begin_and_end_within_blocks(server, gpu, rank, capability):
    """The parts of four ranks: 96 rows of each matrix (two ranks have the same keys and values), or
    96 columns."""
    gpu(*capability)
    size, x = 4 * 96, random(7, 4 * 96, dtype=torch.bfloat16)
    own, shared = (slice(96 * part, 96 * part + 96) for part in (rank, rank // 2))
    q, up, down = (quantized("128x128", size, size) for _ in range(3))
    k, v = (quantized("128x128", size // 2, size) for _ in range(2))
    layers = [
        ("ColumnParallelLinear", (size,), {"": up}, [own]),
        ("MergedColumnParallelLinear", ([size, size],), {(0,): q, (1,): up}, [own, own]),
        ("QKVParallelLinear", (96, 4, 2), {"q": q, "k": k, "v": v}, [own, shared, shared]),
        ("RowParallelLinear", (size,), {"": down}, [slice(None)]),
    ]
    common = {"bias": False, "quant_config": server.config_of_blocks(), "prefix": "layer"}
    with server.model_of(torch.bfloat16), server.rank_of(4, rank):
        for kind, sizes, weights, rows in layers:
            options, part, read = {}, x, x
            if kind == "RowParallelLinear":
                options, part = {"reduce_results": False}, x[:, own]
                read = torch.where(torch.arange(size) // 96 == rank, x, 0)
            layer = getattr(server.layers, kind)(size, *sizes, **common, **options)
            for shard, weight in weights.items():  # by the server's loaders
                codes, scale = layer.weight, layer.weight_scale_inv
                codes.weight_loader(codes, weight.data, *shard)
                scale.weight_loader(scale, weight.scale, *shard)
            load(layer)
            with pytest.raises(octofold.UnsupportedError, match="cut blocks"):
                server_weights.refit(layer, [])
            expected = cast(read, "1x128") if capability == (9, 0) else read.double()
            parts = [values(each)[some] for each, some in zip(weights.values(), rows, strict=True)]
            compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
            assert_product(compiled(part)[0], expected, torch.cat(parts))


@DTYPES
@pytest.mark.parametrize("scale", [None, torch.tensor([0.01])], ids=["dynamic", "static"])
def test_one_scale(server, dtype, scale):
    """Servers have one for each channel of activations, where there are FP8 units."""
    weight = quantized("tensor", 200, 304)
    with server.model_of(dtype):
        bias, x = random(200, dtype=dtype), random(33, 304, dtype=dtype)
        y, _ = server.linear(weight, bias, scale)(x)
        expected = cast(x, "channel") if scale is None else cast(x, "tensor", scale)
        assert_product(y, expected, values(weight), bias)


def test_channels(server):
    weight = quantized("channel", 200, 304)
    with server.model_of(torch.bfloat16):
        x = random(33, 304, dtype=torch.bfloat16)
        assert_product(server.linear(weight)(x)[0], cast(x, "channel"), values(weight))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6)])
@pytest.mark.parametrize("granularity", ["128x128", "tensor"])
def test_weights_alone(server, gpu, capability, granularity):
    """If there are no FP8 units, x is not cast, nor the weight repacked."""
    gpu(*capability)
    weight = quantized(granularity, 200, 300)
    with server.model_of(torch.bfloat16):
        bias = random(200, dtype=torch.bfloat16)
        layer = server.linear(weight, bias)
        for rows in (1, 40):
            x = random(rows, 300, dtype=torch.bfloat16)
            assert_product(layer(x)[0], x.double(), values(weight), bias)


@pytest.mark.parametrize(
    ("granularity", "capability"),
    [("128x128", (9, 0)), ("channel", (9, 0)), ("128x128", (8, 6))],
)
def test_compile(server, gpu, granularity, capability):
    """One graph for all numbers of tokens, without a break, and with the bits of the layer."""
    gpu(*capability)
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph

    with server.model_of(torch.bfloat16):
        layer = server.linear(quantized(granularity, 384, 256))
        compiled = torch.compile(
            lambda x: layer(x)[0] + 1, fullgraph=True, dynamic=True, backend=backend
        )
        for rows in (3, 8, 9, 64):
            x = random(rows, 256, dtype=torch.bfloat16)
            assert torch.equal(compiled(x), layer(x)[0] + 1)
    assert len(graphs) == 1
    assert sum("octofold.serving" in target for target in graphs[0]) == 1


@pytest.mark.parametrize(
    ("granularity", "tokens", "activation"),
    [
        *((granularity, tokens, None) for granularity in host.OF_EXPERTS for tokens in (1, 40)),
        ("128x128", 9, host.GELU),
    ],
)
def test_experts(server, granularity, tokens, activation):
    name, function = activation or ("silu", torch.nn.functional.silu)
    with server.model_with_experts():
        layer = server.experts(granularity, activation=name)
        loaded = load_experts(layer, granularity)
        x, ids, weights = routed(tokens)
        y = server.run_experts(layer, x, ids, weights)
    assert y.dtype == x.dtype
    # x and the activation are cast to e4m3, each with an error of some 2.6 %.
    assert relative_error(y, experts_of(loaded, x, ids, weights, function)) < 0.06


def test_the_bits_of_experts_are_octofolds(server):
    with server.model_with_experts():
        layer = server.experts()
        load_experts(layer)
        x, ids, weights = routed(9)
        y = server.run_experts(layer, x, ids, weights)
        w13 = octofold.ScaledTensor(layer.w13_weight, layer.w13_weight_scale_inv, "128x128")
        w2 = octofold.ScaledTensor(layer.w2_weight, layer.w2_weight_scale_inv, "128x128")
        assert torch.equal(y, octofold.experts(x, ids, weights, w13, w2))


class Served(torch.nn.Module):
    """A model that a server loads: two matrices in one layer, a tied one, experts. A tensor's name
    is its parameter's, and what the loader is told."""

    def __init__(self, server):
        super().__init__()
        self.merged, self.experts = server.merged(HIDDEN, [256, 128]), server.experts()
        self.tied = torch.nn.ParameterList([self.merged.weight])
        load_experts(self.experts)
        server.load(self.merged)

    def load_weights(self, named):
        for (name, *arguments), tensor in named:
            parameter = self.get_parameter(name)
            parameter.weight_loader(parameter, tensor, *arguments)

    def contents(self):
        """The address of each parameter, and its bytes."""
        return [(p.data_ptr(), p.clone().view(torch.uint8)) for p in self.parameters()]


def numbers():
    shapes = {("merged.weight", part): (rows, HIDDEN) for part, rows in enumerate((256, 128))}
    for expert in range(EXPERTS):
        for name, matrix in (("w13", "w1"), ("w13", "w3"), ("w2", "w2")):
            shape = (HIDDEN, INNER) if matrix == "w2" else (INNER, HIDDEN)
            shapes[f"experts.{name}_weight", f"{name}_weight", matrix, expert] = shape
    return {key: random(*shape, dtype=torch.bfloat16) for key, shape in shapes.items()}


def in_fp8(named):
    """The same as in a checkpoint that `octofold quantize` has made."""
    for key, tensor in named.items():
        weight = octofold.quantize(tensor, "128x128")
        of_scale = (f"{part}_scale_inv" if str(part).endswith("weight") else part for part in key)
        yield from ((key, weight.data), (tuple(of_scale), weight.scale))


def test_refit(server):
    """The bytes that loading a checkpoint of these numbers gives, in the same memory. An error
    names the parameter, and its loader is the server's again."""
    with server.model_with_experts(), torch.no_grad():
        model, new = Served(server), numbers()
        loader = model.merged.weight.weight_loader
        model.load_weights(in_fp8(new))  # by the server's own loaders
        expected = model.contents()
        for named in (new.items(), in_fp8(new)):
            model.load_weights(in_fp8(numbers()))
            server_weights.refit(model, named)
            torch.testing.assert_close(model.contents(), expected, rtol=0, atol=0)
        with pytest.raises(octofold.InvalidArgumentError, match=r"merged.weight.*\[128, 72\]"):
            server_weights.refit(model, [(("merged.weight", 1), torch.ones(128, 72))])
        assert model.merged.weight.weight_loader == loader


def test_tokens_have_the_bits_that_their_trainer_gives_them(server):
    """After each step of the optimizer, whatever stands beside a token, where both compute
    batch-invariantly."""
    x = random(33, HIDDEN, dtype=torch.bfloat16)
    layer = octofold.nn.Linear(HIDDEN, 384, bias=False, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    octofold.set_batch_invariant(True)
    try:
        with server.model_with_experts():
            model = Served(server)
            for _ in range(2):
                with torch.inference_mode(False), torch.enable_grad():
                    trained = layer(x).log_softmax(-1)
                    trained[:, 0].sum().backward()
                named = zip((0, 1), layer.weight.detach().split([256, 128]), strict=True)
                pairs = [(("merged.weight", part), weight) for part, weight in named]
                server_weights.refit(model, pairs, "128x128 torchao")
                for rows in (slice(33), slice(5, 6)):
                    y, _ = model.merged(x[rows])
                    assert torch.equal(y.log_softmax(-1), trained[rows])
                optimizer.step()
                optimizer.zero_grad()
    finally:
        octofold.set_batch_invariant(False)
