"""The model over data, tensor and expert ranks."""

from dataclasses import dataclass

import octofold
import torch
from language_model.model import HEAD
from octofold.distributed import ColumnParallel, MLPParallel, RowParallel, SharedInput, Whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import parallelize_module

from .model import LanguageModel, Size

SEQUENCE = 1  # the dimension [batch, sequence, hidden] of which each tensor rank has a part


@dataclass(frozen=True)
class Ranks:
    """data: ranks with sequences of their own, over which FSDP shards. tensor: ranks with a part of
    each sequence and of each layer. Experts are spread over all of them."""

    mesh: DeviceMesh  # of the dimensions "data" and "tensor"
    all: DeviceMesh  # of the one dimension "expert"

    @staticmethod
    def of(device: str, tensor: int) -> "Ranks":
        count = torch.distributed.get_world_size()
        if count % tensor != 0:
            raise SystemExit(f"--tensor: expected a divisor of {count} processes, got {tensor}")
        names = "data", "tensor"
        mesh = init_device_mesh(device, (count // tensor, tensor), mesh_dim_names=names)
        return Ranks(mesh, init_device_mesh(device, (count,), mesh_dim_names=("expert",)))

    @property
    def data(self) -> DeviceMesh:
        return self.mesh["data"]

    @property
    def tensor(self) -> DeviceMesh:
        return self.mesh["tensor"]

    def own(self, batch: Tensor) -> Tensor:
        """This rank's part of [sequences, tokens]."""
        sequences = batch.chunk(self.data.size())[self.data.get_local_rank()]
        return sequences.chunk(self.tensor.size(), SEQUENCE)[self.tensor.get_local_rank()]


def spread(model: LanguageModel, size: Size, ranks: Ranks, recipe: str) -> LanguageModel:
    """Convert the model (a recipe of octofold.nn, or "bfloat16"), and spread it. In place."""
    is_fp8 = recipe != "bfloat16"
    if is_fp8:
        octofold.nn.convert(model, recipe, lambda _, name: name != HEAD, force_fp8=True)
    if size.experts:
        octofold.distributed.parallelize_experts(model, ranks.all)
    if ranks.tensor.size() > 1:
        parallelize_module(model, ranks.tensor, _tensor_plan(model))
    if is_fp8:
        octofold.distributed.gather_in_fp8(model)
    of_experts = set(expert_parameters(model))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=ranks.data, ignored_params=of_experts)
    return model


def expert_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters whose gradients hold the tokens of all ranks, and which FSDP leaves alone."""
    experts = (m for m in model.modules() if isinstance(m, octofold.distributed.ParallelExperts))
    return [parameter for module in experts for parameter in module.parameters()]


def _tensor_plan(model: LanguageModel) -> dict[str, object]:
    """Between layers each rank has a part of the tokens: norms, routers, embeddings and the output
    layer, which all ranks have, see some of them."""
    some = Whole("sum")
    column = ColumnParallel(input_layouts=Shard(SEQUENCE))
    plan: dict[str, object] = {"embedding": some, "norm": some, HEAD: some}
    for name, module in model.named_modules():
        if isinstance(module, octofold.nn.MLP):
            layouts = {"input_layouts": Shard(SEQUENCE), "output_layouts": Shard(SEQUENCE)}
            plan[name] = MLPParallel(**layouts)
        elif name.endswith((".q_proj", ".k_proj", ".v_proj")):
            plan[name] = column
        elif name.endswith(".o_proj"):
            plan[name] = RowParallel(output_layouts=Shard(SEQUENCE))
        elif name.endswith(".attention"):
            plan[name] = SharedInput()
        elif name.endswith(("_norm", ".gate")):
            plan[name] = some
    return plan
