"""What a GPU holds."""

from dataclasses import dataclass
from typing import Final

from .exchanges import parts_of
from .models import Layer
from .ways import BFLOAT16, FLOAT32
from .work import Context


@dataclass(frozen=True)
class State:
    """Bytes of a parameter between steps."""

    master: float
    gradient: float
    moments: float

    @property
    def total(self) -> float:
        return self.master + self.gradient + self.moments

    @property
    def moved(self) -> float:
        """Bytes that the optimizer reads and writes."""
        return 2 * (self.master + self.moments) + self.gradient


STATES: Final = {
    "fp32": State(FLOAT32, FLOAT32, 2 * FLOAT32),
    "bf16-moments": State(FLOAT32, FLOAT32, 2 * BFLOAT16),
    "bf16": State(BFLOAT16, BFLOAT16, 2 * BFLOAT16),
}
"""AdamW: all in FP32; its moments in BF16, as DeepSeek-V3 had them; all in BF16."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU. Not counted: what products and exchanges need while they run, the CUDA
    context, gaps between tensors."""

    state: float
    """Parameters, gradients and the optimizer's moments."""
    layers: float
    """Whole weights of two layers that FSDP gathers, their casts, the gradients of one."""
    activations: float

    @property
    def total(self) -> float:
        return self.state + self.layers + self.activations


def memory_of(at: Context, state: State) -> Memory:
    layers = at.model.layers
    kept = [kept_bytes(layer, at) for layer in layers]
    if at.scheme.recompute:
        inputs = sum(layer.count for layer in layers) * BFLOAT16 * at.model.hidden * at.tokens
        activations = inputs + max(kept)
    else:
        pairs = zip(layers, kept, strict=True)
        activations = sum(layer.count * bytes_ for layer, bytes_ in pairs)
    return Memory(
        state=local_parameters(at) * state.total,
        layers=max(whole_bytes(layer, at) for layer in layers),
        activations=activations,
    )


def local_parameters(at: Context) -> float:
    """Elements of the parameters that a GPU keeps between steps."""
    return sum(
        layer.count * (vectors + sum(at.local_size(linear) for linear in linears)) / group.size
        for layer in at.model.layers
        for group, linears, vectors in parts_of(layer, at)
    )


def whole_bytes(layer: Layer, at: Context) -> float:
    """Of a layer's weights while it runs, with those of the next that is gathered meanwhile."""
    bytes_ = 0.0
    for group, linears, _ in parts_of(layer, at):
        for linear in linears:
            size = at.local_size(linear)
            if group.size > 1:
                sent = at.way.weight_bytes if at.sends_codes(linear) else BFLOAT16
                bytes_ += size * (2 * sent + at.gradient_bytes)
            if at.is_fp8(linear):  # the transposed cast, or that of what was gathered
                bytes_ += size
    return bytes_


def kept_bytes(layer: Layer, at: Context) -> float:
    """Of one micro batch's activations that backward needs, of one layer on one GPU.

    Each linear layer's x (FP8: its transposed codes); gate and up in BF16; the sums before norms;
    attention's queries, keys, values and result; logits in BF16 and their softmax in FP32.
    """
    bytes_ = BFLOAT16 * at.model.hidden * layer.norms * at.tokens
    for linear in layer.linears:
        if linear.lookup:
            continue
        x = at.way.kept_bytes if at.is_fp8(linear) else BFLOAT16
        gate_and_up = 2 * BFLOAT16 if linear.activation else 0.0
        bytes_ += (x + gate_and_up) * linear.in_features * at.rows(linear)
        if linear.name == "head":
            bytes_ += (BFLOAT16 + FLOAT32) * linear.out_features * at.tokens
    if (sizes := layer.attention) is not None:
        features = sizes.heads * (sizes.qk_dim + sizes.v_dim)
        features += sizes.kv_heads * (sizes.qk_dim + sizes.v_dim)
        bytes_ += BFLOAT16 * features * at.tokens
    return bytes_
