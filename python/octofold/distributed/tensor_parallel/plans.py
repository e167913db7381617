"""Plans of tensor parallelism, as models of transformers have them, in styles."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn import Embedding, Module

from ..._core.errors import InvalidArgumentError, UnsupportedError, invalid_argument
from ...nn.layers.experts import Experts
from ...nn.layers.fp8_parameters import held
from ...nn.layers.linear import Linear
from ...nn.layers.mlp import MLP
from .experts import ExpertTensorParallel
from .layouts import FEATURES, require_divisible
from .replicated import Whole
from .styles import ColumnParallel, MLPParallel, RowParallel

NAME: Final = "octofold.distributed.parallelize"
_COLUMN: Final = {
    "colwise": FEATURES,
    "colwise_rep": Replicate(),
    "colwise_gather_output": Replicate(),
}
"""Layouts of results."""

_ROW: Final = {"rowwise": FEATURES, "rowwise_rep": Replicate(), "rowwise_split_input": Replicate()}
"""Layouts of inputs."""

_NOTHING: Final = "replicate"


@dataclass(frozen=True)
class Options:
    """The options that styles of a model have in common.

    tokens: the dimension of tokens [batch, sequence, features] of which each rank has a part
        between layers (sequence parallelism); None: all have all.
    """

    reduce_dtype: torch.dtype | None = None
    tokens: int | None = None

    @property
    def layout(self) -> Any:
        return Replicate() if self.tokens is None else Shard(self.tokens)


def plan_of(model: Module, plan: Mapping[str, str] | None) -> dict[str, str]:
    """The plan that is given, or the model's own: words of transformers by names of modules, with *
    for numbers. Raises InvalidArgumentError."""
    found: Any = getattr(model, "tp_plan", None) if plan is None else plan
    if isinstance(found, Mapping) and found:
        return dict(found)
    expected = "words by names of modules ('model.layers.*.mlp.up_proj': 'colwise'), or None for a "
    expected += "model that has a tp_plan, as those of transformers do"
    got = f"{type(model).__qualname__} without one" if plan is None else repr(plan)
    raise invalid_argument(NAME, "plan", expected, got)


def entries(model: Module, plan: Mapping[str, str]) -> Iterator[tuple[str, Module, str]]:
    """The name, the module and the word of each module that a plan names. Raises
    InvalidArgumentError for a name that is of no module and no parameter."""
    used: set[str] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        generic = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        for key in (name, generic):
            if key in plan:
                used.add(key)
                yield name, module, plan[key]
                break
    parameters = {re.sub(r"(?<![^.])\d+(?![^.])", "*", n) for n, _ in model.named_parameters()}
    # Plans name layers that only some configurations of a model have; a plan that is all wrong is
    # an error.
    if not used & (set(plan) - parameters):
        expected = "names of modules of the model"
        raise invalid_argument(NAME, "plan", expected, ", ".join(list(plan)[:3]))


def style_of(name: str, module: Module, word: str, options: Options) -> ParallelStyle | None:
    """The style that a plan's word means for a module; None: nothing, all ranks have it. Raises
    UnsupportedError for words that are not known for it."""
    if word == _NOTHING:
        return None
    if word in ("replicated_with_grad_allreduce", "sequence_parallel"):
        return Whole("sum")
    is_fp8 = isinstance(module, torch.nn.Linear) and held(module) is not None
    own = Linear if is_fp8 else type(module)
    for kinds, make in _MAKERS:
        if issubclass(own, kinds):
            style = make(word, options)
            if style is not None:
                return style
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    raise UnsupportedError(
        f"{NAME}: argument 'plan': expected a style that octofold has for {kind}, got {word!r} for "
        f"{name!r}"
    )


def _of_ours(word: str, options: Options) -> ParallelStyle | None:
    reduced: Any = {"reduce_dtype": options.reduce_dtype}
    if word == "packed_colwise":
        return ColumnParallel(input_layouts=options.layout, packed=2, **reduced)
    if word in _COLUMN:
        layouts = options.layout, _COLUMN[word]
        return ColumnParallel(input_layouts=layouts[0], output_layouts=layouts[1], **reduced)
    if word in _ROW:
        layouts = _ROW[word], options.layout
        return RowParallel(input_layouts=layouts[0], output_layouts=layouts[1], **reduced)
    return None


def _of_torch(word: str, options: Options) -> ParallelStyle | None:
    if word in _COLUMN:
        return ColwiseParallel(input_layouts=options.layout, output_layouts=_COLUMN[word])
    if word in _ROW:
        return RowwiseParallel(input_layouts=_ROW[word], output_layouts=options.layout)
    return None


def _of_embedding(word: str, options: Options) -> ParallelStyle | None:
    # Tokens are whole here: models take the length of the sequence from what comes out.
    if word in ("embedding_rowwise", "rowwise"):
        return RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())
    if word in ("embedding_colwise", "colwise_rep", "colwise_gather_output"):
        return ColwiseParallel(output_layouts=Replicate())
    return None


def _of_experts(word: str, options: Options) -> ParallelStyle | None:
    if word != "moe_tp_experts":
        return None
    # Blocks of experts make one dimension of all tokens.
    layout = Replicate() if options.tokens is None else Shard(0)
    return ExpertTensorParallel(
        input_layouts=layout, output_layouts=layout, reduce_dtype=options.reduce_dtype
    )


def _of_mlp(word: str, options: Options) -> ParallelStyle | None:
    return MLPParallel(
        input_layouts=options.layout,
        output_layouts=options.layout,
        reduce_dtype=options.reduce_dtype,
    )


_MAKERS: Final[tuple[tuple[Any, Callable[[str, Options], ParallelStyle | None]], ...]] = (
    (Linear, _of_ours),
    (torch.nn.Linear, _of_torch),
    (Embedding, _of_embedding),
    (Experts, _of_experts),
    (MLP, _of_mlp),
)


def require_parts(name: str, module: Any, parent: Any, word: str, size: int) -> None:
    """Checks that each rank gets something of a layer, and whole heads of an attention. Raises
    InvalidArgumentError with the numbers."""
    try:
        if word in _COLUMN and hasattr(module, "out_features"):
            require_divisible(NAME, "model", module.out_features, size)
        if word in _ROW and hasattr(module, "in_features"):
            require_divisible(NAME, "model", module.in_features, size)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error} in {name!r}") from None
    head = getattr(parent, "head_dim", None)
    if word == "colwise" and isinstance(head, int) and hasattr(module, "out_features"):
        heads, rest = divmod(module.out_features, head)
        if rest == 0 and heads % size != 0:
            expected = f"a multiple of {size} heads in {name!r}, the number of ranks"
            raise invalid_argument(NAME, "model", expected, f"{heads} heads of {head} features")
