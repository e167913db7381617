"""What one GPU computes for a layer in one micro batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .links import Links
from .models import Layer, Linear, Model
from .rates import Product, Rates
from .schemes import Scheme
from .ways import Way

ROWS_CAST: Final = 3.0
"""Bytes that a cast moves for each element: BF16 read, codes written."""
BOTH_CAST: Final = 4.0
"""Rows and transpose from one read."""
CODES_CAST: Final = 3.0
"""Rows in the order of experts, and their transpose, from codes."""
CODES_TRANSPOSED: Final = 2.0
ATTENTION_BACKWARD: Final = 2.5
"""Operations of attention's backward, over forward's: five products instead of two."""


@dataclass(frozen=True)
class Context:
    """All that the cost of a layer depends on, beside the layer."""

    model: Model
    scheme: Scheme
    way: Way
    links: Links
    rates: Rates
    tokens: int
    """Of one GPU in one micro batch."""
    sequence: int
    gradient_bytes: float
    """Of an element of a weight's gradient on the wire."""
    output_bytes: float
    """Of an element of a sum over a tensor group on the wire."""

    def local_size(self, linear: Linear) -> float:
        """Elements of a weight on one GPU, before FSDP shards them."""
        parts = {"experts": self.scheme.experts, "own": 1}.get(linear.split, self.scheme.tensor)
        return linear.size / parts

    def rows(self, linear: Linear) -> float:
        """Rows that a GPU has of a layer whose features are not split: its own tokens, or copies
        of tokens at their experts."""
        if linear.split != "experts":
            return self.tokens
        assert self.model.routing is not None
        return self.tokens * self.model.routing.top_k

    def is_fp8(self, linear: Linear) -> bool:
        return self.way.fp8_products and not linear.high_precision

    def sends_codes(self, linear: Linear) -> bool:
        return self.way.fp8_wire and not linear.high_precision


def sizes_of(linear: Linear, at: Context) -> tuple[int, float, float, float]:
    """Groups, rows, outputs and inputs of the product on one GPU."""
    tensor = at.scheme.tensor
    if linear.split == "experts":
        groups = linear.count // at.scheme.experts
        return groups, at.rows(linear) / groups, linear.out_features, linear.in_features
    if linear.split == "column":
        return 1, at.tokens * tensor, linear.out_features / tensor, linear.in_features
    if linear.split == "row":
        return 1, at.tokens * tensor, linear.out_features, linear.in_features / tensor
    return 1, at.tokens, linear.out_features, linear.in_features


def products_of(linear: Linear, at: Context, backward: bool) -> Iterator[Product]:
    if linear.lookup:
        return
    groups, rows, outputs, inputs = sizes_of(linear, at)
    if not backward:
        yield Product("rows", groups, rows, outputs, inputs)
        return
    yield Product("rows", groups, rows, inputs, outputs)
    yield Product("weight", groups, outputs, inputs, rows)


def cast_seconds(linear: Linear, at: Context, backward: bool) -> float:
    """Casts of x (or dY) both ways, each a kernel of its own, and of the weight."""
    if not at.is_fp8(linear):
        return 0.0
    rows = at.rates.cast_rows
    both = at.rates.cast_gradients if backward else at.rates.cast_inputs
    features = linear.out_features if backward else linear.in_features
    elements = at.rows(linear) * features
    gathered = linear.split == ("row" if backward else "column")
    travels = at.scheme.experts > 1 and linear.activation == backward  # to and from experts
    if linear.split == "experts" and travels and at.sends_codes(linear):
        seconds = at.tokens * features * ROWS_CAST / rows + elements * CODES_CAST / both
    elif gathered and not at.sends_codes(linear):
        seconds = at.scheme.tensor * elements * BOTH_CAST / both  # each GPU casts what came
    else:
        seconds = elements * BOTH_CAST / both
    shards = at.scheme.expert_shards if linear.split == "experts" else at.scheme.shards
    weight = at.local_size(linear)
    if not at.sends_codes(linear) or shards == 1:
        return seconds + weight * ROWS_CAST / rows
    seconds += weight / shards * ROWS_CAST / rows  # its shard alone, and sends codes
    return seconds + (weight * CODES_TRANSPOSED / rows if backward else 0.0)


def elementwise_bytes(layer: Layer, at: Context, backward: bool) -> float:
    """Bytes read and written in BF16 beside products, attention and casts."""
    tokens, hidden = at.tokens, at.model.hidden
    bytes_ = 8.0 * hidden * layer.norms * tokens  # x, residual; their sum, its norm
    if (attention := layer.attention) is not None:
        turned = attention.heads + attention.kv_heads
        bytes_ += 4.0 * turned * attention.qk_dim * tokens
    for linear in layer.linears:
        rows = at.rows(linear)
        if linear.activation:  # gate and up; h. Backward: and its gradient, and both of theirs
            bytes_ += (10.0 if backward else 6.0) * linear.in_features * rows
        if linear.split == "experts" and linear.activation == backward:
            if not at.is_fp8(linear):
                bytes_ += 4.0 * hidden * rows  # sorted; FP8 sorts as it casts
            bytes_ += 2.0 * hidden * (rows + tokens)  # combined
        if linear.name == "head":  # logits and their softmax, or gradient
            bytes_ += (4.0 if backward else 6.0) * linear.out_features * tokens
    return bytes_


def attention_seconds(layer: Layer, at: Context, backward: bool) -> float:
    """Causal attention over whole sequences, in BF16 always."""
    if (sizes := layer.attention) is None:
        return 0.0
    flops = at.tokens * at.sequence * sizes.heads * (sizes.qk_dim + sizes.v_dim)
    if backward:
        return ATTENTION_BACKWARD * flops / at.rates.attention_backward
    return flops / at.rates.attention_forward
