"""SGLang's mixtures of experts in FP8 by octofold.experts(): the runner backend "octofold".

SGLang has a registry of runner cores. Its method for FP8 experts knows its own backends alone,
though; two hooks tell it of this one.
"""

from collections.abc import Callable
from typing import Any, Final

from sglang.srt.arg_groups.choices import MOE_RUNNER_BACKEND_CHOICES, add_moe_runner_backend_choices
from sglang.srt.layers.moe.moe_runner import MoeRunner, MoeRunnerConfig, register_moe_runner_core
from sglang.srt.layers.moe.moe_runner.base import DispatchMoeRunnerCore
from sglang.srt.layers.moe.moe_runner.triton import TritonMoeQuantInfo
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
from sglang.srt.layers.moe.utils import get_moe_runner_backend, resolve_moe_runner_backend
from sglang.srt.layers.quantization import fp8_utils

from ..._core.errors import UnsupportedError
from ..._core.scaled_tensor import ScaledTensor
from .. import serving
from .linear import heed_determinism, hook_around

NAME: Final = "octofold"
_METHOD: Final = "sglang.srt.layers.quantization.fp8.Fp8MoEMethod"
_ACTIVATIONS: Final = {"silu": "swiglu", "gelu": "geglu"}


def hook() -> None:
    """Make the backend known. Once more changes nothing."""
    if NAME in MOE_RUNNER_BACKEND_CHOICES:
        return
    register_moe_runner_core(NAME, OctofoldRunnerCore)
    add_moe_runner_backend_choices([NAME])
    hook_around(f"{_METHOD}.create_moe_runner", create_runner)
    hook_around(f"{_METHOD}.apply", apply)


def create_runner(
    original: Callable[..., Any], method: Any, layer: Any, moe_runner_config: MoeRunnerConfig
) -> None:
    """Around Fp8MoEMethod.create_moe_runner()."""
    if get_moe_runner_backend().value != NAME:
        original(method, layer, moe_runner_config)
        return
    if method.use_mxfp8 or method.is_fp4_expert or method.with_bias:
        raise _unsupported("FP8 weights without a bias", "MXFP8 or FP4 weights, or a bias")
    if method.block_quant and list(method.weight_block_size) != [128, 128]:
        raise _unsupported("blocks of 128x128", f"blocks of {method.weight_block_size}")
    if heed_determinism() and not method.block_quant:
        got = "a scale for each expert, as all tokens share one then"
        raise _unsupported("blocks of 128x128 with --enable-deterministic-inference", got)
    method.moe_runner_config = moe_runner_config
    method.runner = MoeRunner(get_moe_runner_backend(), moe_runner_config)
    method._owns_moe_runner = True


def apply(original: Callable[..., Any], method: Any, layer: Any, dispatch_output: Any) -> Any:
    """Around Fp8MoEMethod.apply()."""
    runner = getattr(method, "runner", None)
    if runner is None or runner.runner_backend.value != NAME:
        return original(method, layer, dispatch_output)
    return runner.run(dispatch_output, method.get_triton_quant_info(layer))


class OctofoldRunnerCore(DispatchMoeRunnerCore):  # type: ignore[misc]
    """Both products, the activation between them and the sums by the routing's weights."""

    def __init__(self, config: MoeRunnerConfig) -> None:
        super().__init__(config)
        capability = fp8_utils.get_device_capability()
        why_not = serving.why_not_first(capability, "grouped_gemm", a="1x128", b="128x128")
        if why_not:
            raise UnsupportedError(f"--moe-runner-backend {NAME} {why_not}")
        if config.activation not in _ACTIVATIONS or not config.is_gated:
            got = f"{config.activation}{'' if config.is_gated else ' without gates'}"
            raise _unsupported(f"gates of {' or '.join(_ACTIVATIONS)}", got)
        clamps = config.gemm1_alpha, config.gemm1_clamp_limit, config.swiglu_limit
        if any(clamp is not None for clamp in clamps):
            raise _unsupported("gates that are not clamped", "a limit")
        if config.no_combine or config.apply_router_weight_on_input:
            raise _unsupported("sums by the routing's weights", "weights on inputs, or no sums")

    @property
    def runner_backend(self) -> Any:
        return resolve_moe_runner_backend(NAME)

    def run_from_dispatch(
        self,
        dispatch_output: Any,
        quant_info: TritonMoeQuantInfo,
        runner_config: MoeRunnerConfig,
        hooks: Any = None,
    ) -> StandardCombineInput:
        if hooks is not None:
            raise _unsupported("no LoRA", "LoRA")
        if not dispatch_output.format.is_standard():
            expected = "tokens that stay on their rank"
            raise _unsupported(expected, f"the format {dispatch_output.format.value}")
        weights, ids = dispatch_output.topk_output[:2]
        if runner_config.routed_scaling_factor is not None:
            weights = weights * runner_config.routed_scaling_factor
        granularity = "tensor" if quant_info.block_shape is None else "128x128"
        y = serving.experts(
            dispatch_output.hidden_states,
            ids,
            weights,
            ScaledTensor(quant_info.w13_weight, quant_info.w13_scale, granularity),
            ScaledTensor(quant_info.w2_weight, quant_info.w2_scale, granularity),
            _ACTIVATIONS[runner_config.activation],
        )
        return StandardCombineInput(hidden_states=y)


def _unsupported(expected: str, got: str) -> UnsupportedError:
    return UnsupportedError(f"--moe-runner-backend {NAME}: expected {expected}, got {got}")
