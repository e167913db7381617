"""vLLM's mixtures of experts in FP8 by octofold.experts().

vLLM chooses among kernels for experts from a closed list (Fp8MoeBackend), to which nothing can be
added. What it has is a door for whole quantization methods, so experts are chosen by name:
`--quantization octofold` reads the FP8 checkpoints that "fp8" reads, in the same way, and differs
in who computes their experts. Layers that do not fit are left to vLLM's own choice, and its log
says why.
"""

from typing import Any, Final

import torch
import vllm.envs as envs
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig
from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod, Fp8MoEMethod
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    GroupShape,
    QuantKey,
    create_fp8_quant_key,
    kFp8Dynamic128Sym,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8StaticChannelSym,
    kFp8StaticTensorSym,
)

from ..._core.scaled_tensor import ScaledTensor
from .. import serving
from .cut_layers import OctofoldFp8LinearMethod
from .linear import capability_here

NAME: Final = "octofold"
_log = init_logger("vllm.plugins.octofold")
_ACTIVATIONS: Final = {
    MoEActivation.SILU: "swiglu",
    MoEActivation.GELU: "geglu",
    MoEActivation.GELU_TANH: "geglu-tanh",
}
_BLOCKS: Final = create_fp8_quant_key(static=True, group_shape=GroupShape(128, 128))
_SCHEMES: Final = {
    (_BLOCKS, kFp8Dynamic128Sym): "128x128",
    (kFp8StaticChannelSym, kFp8DynamicTokenSym): "channel",
    (kFp8StaticTensorSym, kFp8DynamicTensorSym): "tensor",
}
"""By the keys of weights and activations, the granularity of the weights."""


def insert() -> None:
    """Make the quantization method known. Once more changes nothing."""
    register_quantization_config(NAME)(OctofoldFp8Config)


class OctofoldFp8Config(Fp8Config):  # type: ignore[misc]
    """The method "fp8", with Octofold's experts, and parts of blocks in linear layers."""

    def __init__(self, is_checkpoint_fp8_serialized: bool = False, **options: Any) -> None:
        if not is_checkpoint_fp8_serialized:  # what vLLM asks for of a checkpoint in 16 bits
            raise ValueError(
                f"--quantization {NAME}: expected a checkpoint whose quantization_config has "
                "quant_method fp8 (octofold quantize writes one), got one without"
            )
        super().__init__(is_checkpoint_fp8_serialized, **options)

    @classmethod
    def get_name(cls) -> str:
        return NAME

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Ours where the user asks for it, of a checkpoint that says "fp8"."""
        is_fp8 = hf_quant_cfg.get("quant_method") == "fp8"
        return NAME if user_quant == NAME and is_fp8 else None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        method = super().get_quant_method(layer, prefix)
        if isinstance(method, Fp8MoEMethod):
            _choose_experts(method)
        elif isinstance(method, Fp8LinearMethod):
            of_vllm, method = method, OctofoldFp8LinearMethod(self)
            method.marlin_input_dtype = of_vllm.marlin_input_dtype
        return method


def _choose_experts(method: Fp8MoEMethod) -> None:
    """Have vLLM's method, which loads and keeps the weights, compute by OctofoldExperts, if they
    fit."""
    fits, why_not = OctofoldExperts.is_supported_config(
        OctofoldExperts, method.moe, *_keys(method), mk.FusedMoEActivationFormat.Standard
    )
    if not fits:
        _log.warning_once("Using vLLM's experts, not OctofoldExperts: %s", why_not)
        return
    method.fp8_backend = Fp8MoeBackend.TRITON  # which has the weights as checkpoints have them
    method.experts_cls = OctofoldExperts
    _log.info_once("Using OctofoldExperts")


def _keys(method: Fp8MoEMethod) -> tuple[QuantKey, QuantKey]:
    """The quantization keys of weights and activations."""
    if method.block_quant:
        # vLLM 0.26 has no blocks of experts that are smaller than the checkpoint's.
        shape = GroupShape(*getattr(method, "moe_block_shape", method.weight_block_size))
        return create_fp8_quant_key(static=True, group_shape=shape), kFp8Dynamic128Sym
    static = method.quant_config.activation_scheme == "static"
    return kFp8StaticTensorSym, kFp8StaticTensorSym if static else kFp8DynamicTensorSym


class OctofoldExperts(mk.FusedMoEExpertsModular):  # type: ignore[misc]
    """Both products, the activation between them and the sums by the routing's weights. Casts are
    inside, so x comes uncast."""

    @staticmethod
    def is_supported_config(
        cls: "type[OctofoldExperts]",  # vLLM has it so
        moe_config: FusedMoEConfig,
        weight_key: QuantKey | None,
        activation_key: QuantKey | None,
        activation_format: mk.FusedMoEActivationFormat,
    ) -> tuple[bool, str | None]:
        here = capability_here()
        why_not = serving.why_not_first(here, "grouped_gemm", a="1x128", b="128x128")
        if why_not:
            return False, f"kernel {why_not}"
        if envs.VLLM_BATCH_INVARIANT and activation_key == kFp8DynamicTensorSym:
            return False, "kernel casts all tokens with one scale, and so has no batch invariance"
        if moe_config.has_bias:
            return False, "kernel does not support biases"
        limits = moe_config.swiglu_limit, moe_config.swiglu_alpha, moe_config.swiglu_beta
        if any(limit is not None for limit in limits):
            return False, "kernel does not support clamped activations"
        answer: tuple[bool, str | None] = mk.FusedMoEExperts.is_supported_config(
            cls, moe_config, weight_key, activation_key, activation_format
        )
        return answer

    @staticmethod
    def activation_format() -> mk.FusedMoEActivationFormat:
        return mk.FusedMoEActivationFormat.Standard

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    @staticmethod
    def _supports_current_device() -> bool:
        return True  # is_supported_config() has asked

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(
        weight_key: QuantKey | None, activation_key: QuantKey | None
    ) -> bool:
        return (weight_key, activation_key) in _SCHEMES

    @staticmethod
    def _supports_batch_invariance() -> bool:
        return True  # is_supported_config() has excluded what does not

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation in _ACTIVATIONS

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: FusedMoEParallelConfig) -> bool:
        """Ranks that share experts, or the features of each. Where tokens travel between ranks was
        not tried."""
        return not moe_parallel_config.use_all2all_kernels

    def finalize_weight_and_reduce_impl(self) -> mk.TopKWeightAndReduce:
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(
        self, tokens: int, features: int, hidden: int, *_: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """None: what the operations allocate is torch's, in graphs too."""
        return (0,), (0,), (tokens, hidden)

    def apply(
        self,
        output: Tensor,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: Tensor | None,
        a1q_scale: Tensor | None,
        a2_scale: Tensor | None,
        workspace13: Tensor,
        workspace2: Tensor,
        expert_tokens_meta: mk.ExpertTokensMetadata | None,
        apply_router_weight_on_input: bool,
    ) -> None:
        if expert_map is not None:  # of all experts to this rank's; −1: another's
            topk_ids = expert_map[topk_ids.long()]
        if apply_router_weight_on_input:  # vLLM has multiplied x by them
            topk_weights = torch.ones_like(topk_weights)
        y = serving.experts(
            hidden_states,
            topk_ids,
            topk_weights,
            self._scaled(w1, self.w1_scale),
            self._scaled(w2, self.w2_scale),
            _ACTIVATIONS[activation],
        )
        output.copy_(y)

    def _scaled(self, weights: Tensor, scale: Tensor | None) -> ScaledTensor:
        """[experts, out, in], with one scale for each square, channel or expert."""
        assert scale is not None
        experts, channels, _ = weights.shape
        if self.block_shape is not None:
            return ScaledTensor(weights, scale, "128x128")
        if self.per_out_ch_quant:
            return ScaledTensor(weights, scale.reshape(experts, channels), "channel")
        return ScaledTensor(weights, scale.reshape(experts), "tensor")
