"""vLLM's own linear layer in block FP8: Octofold's kernel in it beside the kernels of vLLM's table.

    python bench/gpu/run.py vllm_layer RESULTS.jsonl [M/M/...,N,K ...]

Each is vLLM's ReplicatedLinear with its method for FP8 checkpoints, which vLLM's code has loaded.
The baseline is what vLLM itself would take, of its kernels that run here; one that does not is left
out with vLLM's reason. torch.nn.Linear in BF16 has the same shape. Needs vLLM with its extension.
"""

import contextlib
import tempfile
from functools import partial
from types import SimpleNamespace

import octofold
import torch
from common.measure import Build
from common.measure import measure as measure_builds
from common.operands import calls_of, normal, scaled, sets_of
from common.run import add_shapes, shapes_of, text_of
from octofold_tool.gpu.measuring import Implementation, relative_error

ROUNDS, SECONDS = 40, 540

SHAPES = ("1/16/64/1024/8192,4096,7168", "1/64/8192,7168,2048", "1/64/8192,28672,4096")
ERROR_LIMIT = 3e-3  # of ours, against the product of its own cast
PEER_ERROR_LIMIT = 5e-2  # against x in BF16: the cast alone makes some 2.6e-2


class Vllm:
    """vLLM in one process, as inside of a model in BF16."""

    def __init__(self, device: torch.device) -> None:
        from octofold.integrations.vllm import linear
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import parallel_state
        from vllm.model_executor.kernels import linear as tables
        from vllm.model_executor.layers.quantization.online import fp8  # noqa: F401  (before a GPU)
        from vllm.platforms.interface import PlatformEnum

        self.tables, self.cuda, self.device = tables, PlatformEnum.CUDA, device
        self.ours = linear.OctofoldFp8BlockScaledMMKernel
        self.config = VllmConfig()
        text = SimpleNamespace(model_type="llama")
        self.config.model_config = SimpleNamespace(
            dtype=torch.bfloat16, hf_text_config=text, is_moe=False
        )
        rendezvous = f"file://{tempfile.mkdtemp()}/rendezvous"
        self.entered = partial(set_current_vllm_config, self.config)
        with self.entered():
            parallel_state.init_distributed_environment(1, 0, rendezvous, 0, "gloo")
            parallel_state.initialize_model_parallel()

    def kernels(self) -> list[type]:
        """vLLM's own, in the order in which it asks them."""
        return [
            kernel
            for kernel in self.tables._POSSIBLE_FP8_BLOCK_KERNELS[self.cuda]
            if not kernel.__name__.startswith("Octofold")
        ]

    def layer(self, weight: octofold.ScaledTensor, kernel: type) -> torch.nn.Module:
        """vLLM's layer with this weight [out, in], for which vLLM has this kernel alone to take.
        Raises ValueError, with vLLM's reason, if it does not."""
        from vllm.model_executor.layers.linear import ReplicatedLinear
        from vllm.model_executor.layers.quantization.fp8 import Fp8Config

        table = self.tables._POSSIBLE_FP8_BLOCK_KERNELS
        before, table[self.cuda] = table[self.cuda], [kernel]
        try:
            with self.entered(), bfloat16_on(self.device):
                config = Fp8Config(weight_block_size=[128, 128])
                outputs, inputs = weight.shape
                layer = ReplicatedLinear(
                    inputs, outputs, bias=False, quant_config=config, prefix="layer"
                )
                layer.weight.data.copy_(weight.data)
                layer.weight_scale_inv.data.copy_(weight.scale)
                layer.quant_method.process_weights_after_loading(layer)
        except ValueError as error:  # the reason is its last line
            raise ValueError(str(error).splitlines()[-1]) from None
        finally:
            table[self.cuda] = before
        assert type(layer.quant_method.fp8_linear) is kernel
        return layer


@contextlib.contextmanager
def bfloat16_on(device):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def builds(run, vllm, m, n, k):
    """vLLM's kernels, ours, and BF16, on the same x and weights."""
    operations = 2 * m * n * k
    size = n * k + 2 * m * (n + k)
    sets = sets_of(lambda: (normal(run, m, k), scaled(run, n, k, "128x128")), size, run)
    x, weight = sets[0]

    def make(kernel):
        layers = [vllm.layer(its_weight, kernel) for _, its_weight in sets]
        ours = kernel is vllm.ours
        of_x = octofold.quantize(x, "1x128 torchao").dequantize() if ours else x.float()

        def call(layer, x):
            return layer(x)[0]

        pairs = [(layer, its_x) for layer, (its_x, _) in zip(layers, sets, strict=True)]

        def error():
            return relative_error(call(*pairs[0]), of_x @ weight.dequantize().T)

        return Implementation(
            calls_of(call, pairs), error, ERROR_LIMIT if ours else PEER_ERROR_LIMIT
        )

    for kernel in vllm.kernels():
        yield Build(f"vLLM {kernel.__name__}", partial(make, kernel), False, n * k, operations)
    yield Build(f"vLLM {vllm.ours.__name__}", partial(make, vllm.ours), True, n * k, operations)

    def make_bfloat16():
        pairs = [(its_x, its_weight.dequantize("bfloat16")) for its_x, its_weight in sets]
        linear = torch.nn.functional.linear

        def error():
            return relative_error(linear(*pairs[0]), x.float() @ pairs[0][1].float().T)

        return Implementation(calls_of(linear, pairs), error)

    yield Build("torch.nn.Linear BF16", make_bfloat16, False, 2 * n * k, operations)


def add_options(parser):
    add_shapes(parser)


def cases(run):
    vllm = Vllm(run.device)
    for shape in shapes_of(run.options.shapes or SHAPES):
        yield vllm, shape


@torch.inference_mode()
def measure(run, case):
    vllm, shape = case
    with vllm.entered():
        measure_builds(run, "vllm layer", text_of(shape), builds(run, vllm, *shape))
