"""What a model is made of: linear layers, attention and vectors, from a config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ..report import ToolError, read_text

CONFIGS: Final = Path(__file__).parent / "configs"
BUILT_IN: Final = tuple(sorted(path.stem for path in CONFIGS.glob("*.json")))

Split = Literal["column", "row", "own", "experts"]


@dataclass(frozen=True)
class Linear:
    """y [tokens, out] = x [tokens, in] · weightᵀ, or the lookup of an embedding.

    split: how tensor parallelism takes it. "column": a GPU has some outputs and reads all tokens;
    "row": some inputs, and sums go back to the tokens' GPUs; "own": all of it, for its own tokens;
    "experts": whole experts, spread by expert parallelism.
    """

    name: str
    out_features: int
    in_features: int
    split: Split
    count: int = 1
    """Experts."""
    activation: bool = False
    """x is a gated activation: [tokens, 2 · in] was read for it."""
    shared: bool = False
    """Of an expert that all tokens visit, beside the routed ones."""
    lookup: bool = False
    high_precision: bool = False

    @property
    def size(self) -> int:
        """Elements of all weights."""
        return self.out_features * self.in_features * self.count


@dataclass(frozen=True)
class Attention:
    """Sizes as the products of attention see them."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int


@dataclass(frozen=True)
class Layer:
    """One kind of layer, of which a model has `count`."""

    name: str
    count: int
    linears: tuple[Linear, ...]
    vectors: int
    """Parameters that are no linear layer's: norms, routers. Computed in BF16."""
    norms: int
    """Norms over the hidden features, each with its residual sum."""
    attention: Attention | None = None

    @property
    def parameters(self) -> int:
        return self.vectors + sum(linear.size for linear in self.linears)

    @property
    def has_experts(self) -> bool:
        return any(linear.split == "experts" for linear in self.linears)


@dataclass(frozen=True)
class Routing:
    """A token goes to `top_k` of `experts`, which lie in `top_groups` of `groups`."""

    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1


@dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    layers: tuple[Layer, ...]
    routing: Routing | None = None

    @property
    def parameters(self) -> int:
        return sum(layer.count * layer.parameters for layer in self.layers)

    @property
    def active_parameters(self) -> float:
        """Elements of weights that a token is multiplied with."""
        return sum(
            layer.count * linear.size * self.share_of_experts(linear)
            for layer in self.layers
            for linear in layer.linears
            if not linear.lookup
        )

    def share_of_experts(self, linear: Linear) -> float:
        """The share of a layer's weights that one token meets."""
        if linear.split != "experts" or self.routing is None:
            return 1.0
        return self.routing.top_k / self.routing.experts

    def attention_flops(self, sequence: int) -> float:
        """Of one token's forward, causal, in all layers: half of two products over the sequence."""
        return sum(
            layer.count * sequence * a.heads * (a.qk_dim + a.v_dim)
            for layer in self.layers
            if (a := layer.attention) is not None
        )


def load_model(name: str) -> Model:
    """A built-in model, or that of a Hugging Face config.json. Raises ToolError."""
    path = CONFIGS / f"{name}.json" if name in BUILT_IN else Path(name)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise ToolError(
            f"--model: expected {', '.join(BUILT_IN)} or the path of a config.json, got '{name}'"
        )
    try:
        config = json.loads(read_text(path))
    except ValueError as error:
        raise ToolError(f"--model: {path}: expected JSON: {error}") from None
    if not isinstance(config, dict):
        raise ToolError(f"--model: {path}: expected an object, got {type(config).__name__}")
    return model_of(config, name if name in BUILT_IN else path.parent.name or str(path))


def model_of(config: Mapping[str, Any], name: str) -> Model:
    """The model of a config: Llama's kind (also Mistral, Qwen), with experts (Mixtral, Qwen-MoE)
    or latent attention (DeepSeek-V2 and V3). MLPs are taken as gated, and modules that predict
    further tokens are left out. Raises ToolError."""
    fields = Fields(config, name)
    hidden, layers = fields.number("hidden_size"), fields.number("num_hidden_layers")
    vocabulary = fields.number("vocab_size")
    attention, projections, vectors = attention_of(fields, hidden)
    vectors += 2 * hidden
    inner = fields.number("intermediate_size")
    routing = routing_of(fields)
    dense = layers if routing is None else fields.number("first_k_dense_replace", 0, least=0)
    if dense > layers:
        raise ToolError(f"--model: {name}: first_k_dense_replace is {dense}, of {layers} layers")
    mlp = gated_mlp("", hidden, inner, "column", "row")
    kinds = [Layer("dense", dense, (*projections, *mlp), vectors, 2, attention)]
    if routing is not None:
        expert_inner = fields.number("moe_intermediate_size", inner)
        count = routing.experts
        experts = gated_mlp("experts' ", hidden, expert_inner, "experts", "experts", count)
        if shared := fields.number("n_shared_experts", 0, least=0):
            sizes = (hidden, shared * expert_inner)
            experts = (*gated_mlp("shared ", *sizes, "own", "own", shared=True), *experts)
        linears = (*projections, *experts)
        vectors += hidden * routing.experts
        kinds.append(Layer("experts", layers - dense, linears, vectors, 2, attention))
    head = Linear("head", vocabulary, hidden, "column", high_precision=True)
    table = Linear("embedding", hidden, vocabulary, "row", lookup=True, high_precision=True)
    ends = (head,) if config.get("tie_word_embeddings") else (table, head)
    kinds.append(Layer("ends", 1, ends, hidden, 1))
    return Model(name, hidden, tuple(kind for kind in kinds if kind.count), routing)


def gated_mlp(
    prefix: str, hidden: int, inner: int, first: Split, second: Split, count: int = 1, **more: bool
) -> tuple[Linear, ...]:
    """Gate and up as one layer, and down."""
    return (
        Linear(f"{prefix}gate_up", 2 * inner, hidden, first, count, **more),
        Linear(f"{prefix}down", hidden, inner, second, count, activation=True, **more),
    )


def attention_of(fields: "Fields", hidden: int) -> tuple[Attention, tuple[Linear, ...], int]:
    """Attention, its projections, and how many elements its own norms have."""
    heads = fields.number("num_attention_heads")
    if "kv_lora_rank" not in fields.config:
        kv_heads = fields.number("num_key_value_heads", heads)
        size = fields.number("head_dim", max(1, hidden // heads))
        qkv = Linear("qkv", (heads + 2 * kv_heads) * size, hidden, "column")
        out = Linear("o", hidden, heads * size, "row")
        return Attention(heads, kv_heads, size, size), (qkv, out), 0
    nope, rope = fields.number("qk_nope_head_dim"), fields.number("qk_rope_head_dim")
    value, kv_rank = fields.number("v_head_dim"), fields.number("kv_lora_rank")
    kv = Linear("kv_b", heads * (nope + value), kv_rank, "column")
    out = Linear("o", hidden, heads * value, "row")
    attention = Attention(heads, heads, nope + rope, value)
    if not fields.config.get("q_lora_rank"):
        q = Linear("q", heads * (nope + rope), hidden, "column")
        latents = Linear("latents", kv_rank + rope, hidden, "own")
        return attention, (latents, q, kv, out), kv_rank
    q_rank = fields.number("q_lora_rank")
    q = Linear("q_b", heads * (nope + rope), q_rank, "column")
    latents = Linear("latents", q_rank + kv_rank + rope, hidden, "own")
    return attention, (latents, q, kv, out), q_rank + kv_rank


def routing_of(fields: "Fields") -> Routing | None:
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    name = next((name for name in names if fields.config.get(name)), None)
    if name is None:
        return None
    for rule in ("moe_layer_freq", "decoder_sparse_step"):
        if fields.number(rule, 1) != 1:
            raise ToolError(f"--model: {fields.name}: {rule}: expected 1 or nothing, "
                            f"got {fields.config[rule]}")  # fmt: skip
    groups = fields.number("n_group", 1)
    routing = Routing(
        fields.number(name),
        fields.number("num_experts_per_tok"),
        groups,
        fields.number("topk_group", groups),
    )
    reachable = routing.experts // groups * routing.top_groups
    if routing.experts % groups or routing.top_groups > groups or routing.top_k > reachable:
        raise ToolError(
            f"--model: {fields.name}: expected num_experts_per_tok of {name} in topk_group of "
            f"n_group equal groups, got {routing.top_k} of {routing.experts} in "
            f"{routing.top_groups} of {groups}"
        )
    return routing


@dataclass(frozen=True)
class Fields:
    """A config whose faults are told by name."""

    config: Mapping[str, Any]
    name: str

    def number(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.config.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ToolError(
                f"--model: {self.name}: {key}: expected a whole number of at least {least}, "
                f"got {value!r}"
            )
        return value
