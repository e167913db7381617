"""FSDP2 whose gathers move FP8.

FSDP asks the local tensor of a sharded parameter what is to be gathered (fsdp_pre_all_gather), and
makes the parameter of what has come (fsdp_post_all_gather): torch.distributed.fsdp's extension
point for tensor subclasses. So each rank casts its shard, and the layers multiply with the codes.

Where a weight has one scale, ranks agree on its largest magnitude as the model's forward begins,
for all layers at once: one all-reduce of a number for each. Gathers find the result on the layers
until that forward ends, and no longer, as weights may change then. Each gather that finds none asks
for its own: of a layer that runs without its model, before it, or in backward, and of each layer in
the first forward, when it is not known yet who the ranks are. FSDP's gathers run on streams of its
own, outside backward and in it.
"""

import inspect
from collections import defaultdict
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn import Module, Parameter

from .._core.errors import UnsupportedError, invalid_argument
from .._core.recipe import Recipe
from .._core.scaled_tensor import ScaledTensor
from .._ops.cast import cast
from .._ranks import Ranks, ranks_of, require_agreement
from .._ranks.wire import as_bytes, largest
from ..nn.autograd.fitting import local_part
from ..nn.casting.casts import cast_weight, with_amax
from ..nn.casting.fp8_weight import Fp8Weight
from ..nn.casting.weight_tensors import WrappedWeight, with_local
from ..nn.layers.experts import Experts
from ..nn.layers.linear import Linear

_NAME: Final = "octofold.distributed.gather_in_fp8"
_T = TypeVar("_T")


class StreamValue(Generic[_T]):
    """A value that was made on the current stream, for others too: FSDP asks for what is to be
    gathered on streams that do not wait for a forward's pre-hooks, nor for each other.

    value: of these tensors.
    """

    def __init__(self, value: _T, *tensors: Tensor | None) -> None:
        self._value = value
        self._tensors: Final = [tensor for tensor in tensors if tensor is not None]
        on_gpu = self._tensors[0].is_cuda
        self._ready = torch.cuda.current_stream().record_event() if on_gpu else None

    def on_current_stream(self) -> _T:
        """It, for the current stream, which waits until it is there; its memory is kept as long as
        this stream needs it."""
        if self._ready is not None:
            stream = torch.cuda.current_stream(self._tensors[0].device)
            stream.wait_event(self._ready)
            for tensor in self._tensors:
                tensor.record_stream(stream)
        return self._value


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


_HELD: Final = "_shard_of_weight"

_is_compiling: Final = torch.compiler.is_compiling


class _Held:
    """A layer's record of who has a shard of its weight, and of what they have agreed on."""

    def __init__(self, place: str, weight: Tensor, dtype: torch.dtype, ranks: Ranks) -> None:
        self.place, self.dtype, self.ranks = place, dtype, ranks
        self.weight = ref(weight)  # with offloading it is there for one gather
        self.agreed: StreamValue[Tensor] | None = None
        """In a forward of the model."""
        self.is_ahead = False
        """True if the weight was gathered for a forward of the model before that began."""


def agreed_amax(
    module: Module, place: str, weight: Tensor, dtype: torch.dtype, mesh: Any
) -> Tensor:
    """The largest magnitude [1], float32, of the whole weight of which a layer has this shard, in
    the dtype from which it is cast. place: of the layer in the model, for messages."""
    held: _Held | None = module.__dict__.get(_HELD)
    if held is None or held.weight() is not weight or held.dtype != dtype:
        held = _Held(place, weight, dtype, ranks_of(_NAME, "mesh", mesh))
        module.__dict__[_HELD] = held
    if held.agreed is not None:
        return held.agreed.on_current_stream()
    held.is_ahead = not in_backward()
    return _agree([held], [weight])[0].on_current_stream()


def agree_before_forward(model: Module, arguments: Any) -> None:
    """A forward pre-hook of the model: all of its layers at once. fully_shard() comes later, and
    puts a hook that gathers before this one, which goes back to where it was."""
    hooks: Any = model._forward_pre_hooks
    if next(iter(hooks.values())) is not agree_before_forward and not _is_compiling():
        own = next(key for key, hook in hooks.items() if hook is agree_before_forward)
        hooks.move_to_end(own, last=False)
    if in_backward():  # forward again, for activations: backward has its codes
        return
    together: defaultdict[Ranks, tuple[list[_Held], list[Tensor]]]
    together = defaultdict(lambda: ([], []))
    for held in _held_in(model):
        weight = held.weight()
        if weight is not None and not held.is_ahead:
            several, weights = together[held.ranks]
            several.append(held)
            weights.append(weight)
    for several, weights in together.values():
        for held, agreed in zip(several, _agree(several, weights), strict=True):
            held.agreed = agreed


def forget_after_forward(model: Module, arguments: Any, result: Any) -> None:
    """A forward hook of the model, also of a forward that failed."""
    for held in _held_in(model):
        held.agreed, held.is_ahead = None, False


def _held_in(model: Module) -> list[_Held]:
    return [m.__dict__[_HELD] for m in model.modules() if _HELD in m.__dict__]


@torch.no_grad()
def _agree(several: list[_Held], weights: list[Tensor]) -> list[StreamValue[Tensor]]:
    """One all-reduce of the group that all of them have."""
    ranks = several[0].ranks
    words = ", ".join(f"{held.place} from {held.dtype}" for held in several)
    require_agreement(_NAME, ranks, weights=words)
    found = torch._foreach_norm(weights, torch.inf)
    own = [amax.to(held.dtype) for amax, held in zip(found, several, strict=True)]
    amaxes = torch.split(largest(_NAME, torch.stack(own).float(), ranks), 1)
    return [StreamValue(amax, amax) for amax in amaxes]


_Metadata: TypeAlias = tuple[str, torch.dtype, Tensor | None]
"""Granularity, dtype of the codes, and the scale that all ranks know already."""


class ShardedWeight(WrappedWeight):
    """A weight [out, in], or experts' [experts, out, in], or the shard of one.

    place: of the layer in the model, for messages.
    recipe: of the layer: its weight has the same scales in both of its products.
    """

    place: str
    recipe: Recipe
    _kept: tuple[torch.dtype, StreamValue[ScaledTensor]] | None
    """The codes that the last gather outside backward cast, and from which dtype: backward
    multiplies with the codes of forward, and each step casts a weight once."""

    @staticmethod
    def __new__(cls, plain: Tensor, place: str, recipe: Recipe) -> "ShardedWeight":
        made = WrappedWeight.__new__(cls, plain)
        made.place, made.recipe, made._kept = place, recipe, None
        return made

    def like(self, plain: Tensor) -> "ShardedWeight":
        return ShardedWeight(plain, self.place, self.recipe)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["plain"], (self.place, self.recipe)

    @staticmethod
    def __tensor_unflatten__(
        tensors: dict[str, Tensor], context: Any, size: Any, stride: Any
    ) -> "ShardedWeight":
        return ShardedWeight(tensors["plain"], *context)

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], _Metadata]:
        """FSDP's question: what of this shard is to be gathered along the first dimension."""
        _require_whole_units(self, mesh.size(), outer_size)
        codes = self._codes(mp_policy.param_dtype or self.dtype, mesh, module)
        kind, data = (codes.granularity, codes.data.dtype), as_bytes(codes.data)
        # All ranks know one scale already. Of several tensors FSDP takes the first for one rank.
        if has_one_scale(self) or mesh.size() == 1:
            return (data,), (*kind, codes.scale)
        return (data, codes.scale), (*kind, None)

    def _codes(self, dtype: torch.dtype, mesh: Any, module: Any) -> ScaledTensor:
        """The shard's codes, as casting after the gather makes them from a weight of this dtype."""
        if in_backward() and self._kept is not None and self._kept[0] == dtype:
            return self._kept[1].on_current_stream()
        codes = self._cast(dtype, mesh, module)
        if not in_backward():
            kept = StreamValue(codes, codes.data, codes.scale)
            self._kept = (dtype, kept) if module.training else None
        return codes

    def _cast(self, dtype: torch.dtype, mesh: Any, module: Any) -> ScaledTensor:
        weight = self.plain.to(dtype)
        codes: ScaledTensor | None
        if has_one_scale(self):
            assert self.recipe.output is not None
            amax = agreed_amax(module, self.place, self.plain, dtype, mesh)
            codes = cast(weight, rows=with_amax(self.recipe.output.b, amax)).rows
        else:
            codes, _ = cast_weight(weight, self.recipe, True, False)
        assert codes is not None
        if codes.scale.is_contiguous():
            return codes
        return ScaledTensor(codes.data, codes.scale.contiguous(), codes.granularity)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[Tensor, ...],
        metadata: _Metadata,
        param_dtype: torch.dtype,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """FSDP's question: the whole weight of what has come; with `out`, that it is there again,
        in the memory that it had."""
        granularity, dtype, agreed = metadata
        if agreed is not None and agreed.is_cuda:  # was made on a stream of FSDP's
            agreed.record_stream(torch.cuda.current_stream(agreed.device))
        if out is not None:
            held = getattr(out, "_local_tensor", out)  # of a DTensor, over tensor parallelism
            assert isinstance(held, Fp8Weight)
            if agreed is not None:
                # Tensors that backward saved of it hold the same numbers: the weight is the same.
                counted = () if held.scale.is_inference() else (held.scale,)
                with torch.no_grad(), _unsafe_preserve_version_counter(counted):
                    held.scale.copy_(agreed)
            return None
        codes, *scale = all_gather_outputs
        whole = ScaledTensor(codes.view(dtype), agreed if not scale else scale[0], granularity)
        return Fp8Weight.of(whole, param_dtype), ()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<a weight that travels in FP8: {self.plain!r}>"


# FSDP looks it up in each gather, which takes the host longer than a launch.
_pre: Any = ShardedWeight.fsdp_pre_all_gather
_pre.__signature__ = inspect.signature(_pre)


def has_one_scale(weight: ShardedWeight) -> bool:
    """True if the whole weight has one: experts have one each, and a shard is of whole experts."""
    output = weight.recipe.output
    return weight.dim() == 2 and output is not None and output.b.granularity == "tensor"


def _require_whole_units(weight: ShardedWeight, ranks: int, size: Any) -> None:
    """Requires that each rank has as many rows as any other, whole squares of them. All ranks see
    the same sizes, so that all raise."""
    rows, got = int(size[0]), f"{list(size)} on {ranks} ranks"
    squares = weight.dim() == 2 and not has_one_scale(weight)
    if weight.shape[1:] != size[1:]:
        got = f"parts {list(weight.shape)} of {got} (shard_placement_fn)"
    elif rows % ranks == 0 and not (squares and ranks > 1 and rows // ranks % 128 != 0):
        return
    unit = "a multiple of 128 rows" if squares else "equally many rows"
    raise UnsupportedError(
        f"{_NAME}: argument 'model': expected {unit} of {weight.place!r} on each rank, got {got}: "
        "give parts of the model without this layer, or convert() without it (module_filter_fn)"
    )


def _require_travels(recipe: Recipe) -> None:
    """A recipe in which the codes of a weight [out, in] serve both of its products."""
    output, grad_input = recipe.output, recipe.grad_input
    scales = {
        None if product is None else product.b.granularity for product in (output, grad_input)
    }
    if scales not in ({"tensor"}, {"128x128"}):
        expected = "one with squares of 128x128, or one scale, for the weight in 'output' and in "
        expected += "'grad_input', such as blockwise or tensorwise, as one set of codes travels"
        raise invalid_argument(_NAME, "recipe", expected, str(recipe))


def gather_in_fp8(model: Module) -> Module:
    """Let FSDP2 gather the weights of a model's FP8 layers as codes with their scales: half the
    bytes of bfloat16, and bit for bit the products that casting after the gather gives.

    model: changed in place, before fully_shard() and before the optimizer is made: its
        octofold.nn.Linear (those inside MLP and NormLinear too) and octofold.nn.Experts get other
        parameters, of the same names, numbers and state_dict(). Those that tensor parallelism has
        spread are sharded further. Recipes have to have squares of 128x128, or one scale, for the
        weight ("blockwise", "tensorwise"): others multiply forward and backward with different
        codes. Frozen FP8 weights (octofold.nn.Fp8Weight) are left as they are.

    Each rank casts its shard. So with squares a shard has to be of whole ones, a multiple of 128
    rows of a layer's weight, on each rank as many: an UnsupportedError in the first forward, on
    every rank, names the layer otherwise. Of experts' stacks a shard is whole experts. Scales of
    whole tensors are agreed on as the model's forward begins, by one all-reduce of a number for
    each layer. Layers whose weight came in FP8 always multiply in FP8.

    Returns the model.
    Raises InvalidArgumentError, with nothing changed: without such layers, for other recipes, and
    for weights that are sharded already.
    """
    if not isinstance(model, Module):
        raise invalid_argument(_NAME, "model", "a torch.nn.Module", type(model).__qualname__)
    found: list[tuple[Linear | Experts, str, str, Parameter]] = []
    for place, module in model.named_modules():
        if not isinstance(module, (Linear, Experts)):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            local = local_part(parameter.detach())
            if parameter.dim() < 2 or name.endswith("bias") or isinstance(local, Fp8Weight):
                continue
            where = f"{place}.{name}" if place else name
            _require_travels(module.recipe)
            if module.is_sharded:
                expected = "weights that are not sharded yet: before fully_shard()"
                raise invalid_argument(_NAME, "model", expected, f"a DTensor, {where}")
            if not isinstance(local, ShardedWeight):
                found.append((module, name, where, parameter))
    if not found:
        expected = "layers of octofold.nn with weights in high precision"
        raise invalid_argument(_NAME, "model", expected, type(model).__qualname__)
    new: dict[int, Parameter] = {}  # a tied weight stays one
    agrees = False
    for module, name, where, parameter in found:
        if id(parameter) not in new:
            weight = parameter.detach()
            sharded = ShardedWeight(local_part(weight), where, module.recipe)
            agrees = agrees or has_one_scale(sharded)
            requires_grad = parameter.requires_grad
            new[id(parameter)] = Parameter(with_local(weight, sharded), requires_grad)
        module.register_parameter(name, new[id(parameter)])
    if agrees:
        model.register_forward_pre_hook(agree_before_forward)
        model.register_forward_hook(forget_after_forward, always_call=True)
    return model
