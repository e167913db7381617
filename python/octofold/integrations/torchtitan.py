"""torchtitan: its linear layers and experts in FP8, by a converter of its model configs.

    from octofold.integrations.torchtitan import OctofoldConverter

    model_registry("8B", converters=[OctofoldConverter.Config(recipe="blockwise")])

Raises UnavailableError for a torchtitan that it does not know.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

import torch
from torch import Tensor

from .._core.errors import UnsupportedError, invalid_argument
from .._core.recipe import recipe_of
from ..nn.autograd.experts import expert_recipe_of, experts
from ..nn.autograd.fitting import local_part
from ..nn.layers.linear import Linear as Fp8Linear
from .hosts import require

require("torchtitan")

from torchtitan.components.quantization import QuantizationConverter  # noqa: E402
from torchtitan.models.common.linear import Linear  # noqa: E402
from torchtitan.models.common.moe import GroupedExperts  # noqa: E402
from torchtitan.protocols.module import Module  # noqa: E402
from torchtitan.tools.logging import logger  # noqa: E402

__all__ = ["OctofoldConverter", "OctofoldGroupedExperts", "OctofoldLinear"]

_NAME: Final = "OctofoldConverter"
_LEFT_ALONE: Final = ("lm_head", "router")
"""Output heads and routers, as octofold.nn.convert() has it: small, and what is most sensitive."""


class OctofoldLinear(Fp8Linear, Module):  # type: ignore[misc]
    """octofold.nn.Linear as torchtitan builds it."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):  # type: ignore[misc]
        """recipe, force_fp8: as in octofold.nn.Linear."""

        recipe: str = "blockwise"
        force_fp8: bool = False

    def __init__(self, config: Config) -> None:
        super().__init__(
            config.in_features,
            config.out_features,
            bias=config.bias,
            recipe=config.recipe,
            force_fp8=config.force_fp8,
        )

    def parallelize(self, parallel_dims: Any) -> None:
        _refuse_tensor_parallelism(parallel_dims)
        super().parallelize(parallel_dims)


class OctofoldGroupedExperts(GroupedExperts):  # type: ignore[misc]
    """torchtitan's experts by octofold.experts(), with the same parameters. Each forward puts the
    gate's weights and the other's one below the other. No expert's rows are padded."""

    @dataclass(kw_only=True, slots=True)
    class Config(GroupedExperts.Config):  # type: ignore[misc]
        """recipe: as in octofold.experts()."""

        recipe: str = "blockwise"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.recipe = config.recipe

    def forward(self, x_RD: Tensor, num_tokens_per_expert_E: Tensor) -> Tensor:  # noqa: N803
        """x_RD: rows [R, dim], sorted by expert; of them num_tokens_per_expert_E [E] are each
        expert's. Rows beyond their sum belong to none: their results are zeros."""
        gate, down, up = (local_part(w) for w in (self.w1_EFD, self.w2_EDF, self.w3_EFD))
        ends = torch.cumsum(num_tokens_per_expert_E, 0)
        rows = torch.arange(x_RD.shape[0], device=x_RD.device, dtype=ends.dtype)
        expert = torch.searchsorted(ends, rows, right=True)
        ids = torch.where(expert < gate.shape[0], expert, -1)[:, None]
        once = torch.ones(ids.shape, device=x_RD.device)
        return experts(x_RD, ids, once, torch.cat((gate, up), 1), down, recipe=self.recipe)

    def parallelize(self, parallel_dims: Any) -> None:
        _refuse_tensor_parallelism(parallel_dims)
        super().parallelize(parallel_dims)


class OctofoldConverter(QuantizationConverter):  # type: ignore[misc]
    """Makes the linear layers of a model config OctofoldLinear, and its experts
    OctofoldGroupedExperts. Layers of subclasses of torchtitan's are left alone, because they may
    compute something else."""

    @dataclass(kw_only=True, slots=True)
    class Config(QuantizationConverter.Config):  # type: ignore[misc]
        """recipe: the name of one of octofold.nn.recipes.
        filter_fqns: layers whose fully qualified name has one of these in it are left alone.
        grouped_experts: whether experts are converted.
        force_fp8: as in octofold.nn.Linear.
        """

        recipe: str = "blockwise"
        filter_fqns: list[str] = field(default_factory=lambda: list(_LEFT_ALONE))
        grouped_experts: bool = True
        force_fp8: bool = False

    def __init__(self, config: Config) -> None:
        recipe_of(_NAME, config.recipe)
        self.config = config

    def convert(self, model_config: Any) -> Any:
        """Raises InvalidArgumentError where nothing is converted."""
        config = self.config
        linear = {"recipe": config.recipe, "force_fp8": config.force_fp8}
        found = dict.fromkeys((Linear, GroupedExperts), 0)
        for kind, parent, attribute, layer in list(self._picked(model_config)):
            found[kind] += 1
            if kind is GroupedExperts:
                new = _config_of(OctofoldGroupedExperts, layer, recipe=config.recipe)
            else:
                new = _config_of(OctofoldLinear, layer, **linear)
            if parent is None:
                model_config = new
            elif isinstance(parent, list):
                parent[attribute] = new
            else:
                setattr(parent, attribute, new)
        if not any(found.values()):
            expected = "to leave a linear layer or experts to convert"
            raise invalid_argument(_NAME, "filter_fqns", expected, config.filter_fqns)
        logger.info(
            f"octofold: {found[Linear]} linear layers and {found[GroupedExperts]} layers of "
            f"experts in FP8, recipe {config.recipe}"
        )
        return model_config

    def _picked(self, model_config: Any) -> Iterator[tuple[type, Any, Any, Any]]:
        """Their kind, where they are, and their config."""
        kinds = (Linear, GroupedExperts) if self.config.grouped_experts else (Linear,)
        for kind in kinds:
            for name, layer, parent, attribute in model_config.traverse(kind.Config):
                left_alone = any(part in name for part in self.config.filter_fqns)
                if type(layer) is not kind.Config or left_alone:
                    continue
                if kind is GroupedExperts:
                    expert_recipe_of(_NAME, self.config.recipe)
                yield kind, parent, attribute, layer


def _config_of(kind: Any, layer: Any, **more: Any) -> Any:
    """A layer's config for another class of layer."""
    return kind.Config(**{f.name: getattr(layer, f.name) for f in fields(layer)}, **more)


def _refuse_tensor_parallelism(parallel_dims: Any) -> None:
    if parallel_dims.tp_enabled:
        raise UnsupportedError(
            "octofold.integrations.torchtitan: expected no tensor parallelism, whose DTensors "
            f"octofold.nn.Linear does not take, got tensor_parallel_degree={parallel_dims.tp}"
        )
