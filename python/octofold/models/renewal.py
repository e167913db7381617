"""Renewing a model's weights where they lie, as reinforcement learning does after each step of its
trainer: what is FP8 is cast into the memory that it has, which CUDA graphs read."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Module, Parameter

from .._core.errors import UnsupportedError, invalid_argument, listed, require_type
from .._core.formats import UNITS
from .._core.ops import scale_shape
from .._core.scaled_tensor import ScaledTensor
from .._ops.cast import Target
from .._ops.cast_many import CastJob, cast_many
from .._ranks import Ranks, ranks_of
from .._ranks.wire import gathered_rows
from ..nn.autograd.fitting import is_dtensor, local_part
from ..nn.casting.casts import walkable
from ..nn.casting.fp8_weight import Fp8Weight
from ..nn.casting.step_casts import renew_casts
from ..nn.casting.weight_tensors import is_wide, without_wrapping
from ..nn.layers.fp8_parameters import joined
from .load_into import Slot, slots_of

_NAME: Final = "octofold.models.refit"
_GATED: Final = ("gate_proj", "up_proj")
_FUSED: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": _GATED}
"""Layers of which checkpoints have the parts, one below the other, as layers of their own."""
_OF_EXPERTS: Final = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""The names that some checkpoints have for the matrices of an expert."""


@torch.no_grad()
def refit(
    model: Module,
    named_tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    strict: bool = True,
    bucket_bytes: int = 1 << 28,
) -> None:
    """Write other numbers into a model's weights, in the memory that they have: FP8 weights get the
    codes and scales, byte for byte, that converting the model from these numbers anew would give
    them. CUDA graphs and compiled functions of the model compute with them from then on.

    model: with octofold.nn.Fp8Weights, of linear layers, experts or any layer, or without.
    named_tensors: a state_dict(), or pairs of a name and a tensor, which are drawn one by one, on
        any device. Of bfloat16, float16 or float32 they are cast as the weight was; an Fp8Weight or
        a ScaledTensor is copied. With a DTensor all ranks of its mesh call this, in one order:
        where each has whole units of scales it casts them, and codes travel, else numbers. Names
        and shapes are those of state_dict(), or of q_proj, k_proj and v_proj for a qkv_proj,
        gate_proj and up_proj for a gate_up_proj, and `<experts>.N.gate_proj.weight`, `up_proj` and
        `down_proj` (or w1, w3, w2) for a layer's experts.
    strict: whether parameters that get nothing, or not all of their numbers, are an error.
    bucket_bytes: how much is drawn before it is written, by one launch for each kind of cast; all
        parts of a weight in any case. Until then a tensor has to stay what it is.

    Nothing of a bucket is written before all of it is known to be right, and nothing at all before
    all of a mapping or a list is. Parts whose rows share scales are put together first, in a
    copy of that weight. What is not FP8 is copied. Casts that octofold.nn.cast_after_step() holds
    are made anew.

    Raises InvalidArgumentError, which names the tensor, what is expected and what came;
    UnsupportedError for FP8 parts that share scales with others.
    """
    require_type(_NAME, "model", model, Module, "a torch.nn.Module")
    renewal = _Renewal(model)
    if isinstance(named_tensors, Mapping):
        named_tensors = list(named_tensors.items())
    if isinstance(named_tensors, Sequence):
        came = Counter[int]()
        for place, piece in (renewal.look(*named) for named in named_tensors):
            came[id(place.slot)] += piece.value.numel()
        renewal.require_all(came, strict)
    for name, value in named_tensors:
        renewal.take(name, value)
        if renewal.bytes >= bucket_bytes and not renewal.open:
            renewal.write()
    renewal.require_all(renewal.came, strict)
    renewal.write()
    renew_casts(slot.tensor for slot in renewal.slots)


class _Place(NamedTuple):
    """The place of a tensor: rows of a parameter, or of one expert's matrix in it."""

    slot: Slot
    expert: int | None = None
    part: int = 0
    parts: int = 1

    @property
    def cut(self) -> Any:
        """The layer, if tensor parallelism has cut its FP8 weight."""
        owner = self.slot.places[0].owner
        return owner if self.slot.fp8 is not None and hasattr(owner, "part_of") else None

    @property
    def shape(self) -> torch.Size:
        """The shape of all parts; of what is cut, that of the whole."""
        if self.cut is not None:
            return torch.Size((self.cut.out_features, self.cut.in_features))
        return self.slot.tensor.shape[self.expert is not None :]


class _Piece(NamedTuple):
    """The tensor for a place: numbers, or codes with their scale."""

    name: str
    value: Any
    scale: Tensor | None = None

    def wrong(self, expected: str, got: object) -> Exception:
        return invalid_argument(_NAME, f"named_tensors['{self.name}']", expected, got)


class _Plan(NamedTuple):
    """The casts for a tensor, and after them copies, in this order: where to, and what."""

    tensor: Tensor
    jobs: list[CastJob]
    copies: list[tuple[Tensor, Callable[[], Tensor]]]


class _Renewal:
    """The tensors of a bucket, where they belong, and what is to be done with them."""

    def __init__(self, model: Module) -> None:
        self.slots = slots_of(model)
        self._by_name = {name: slot for slot in self.slots for name in slot.names}
        self.open: dict[tuple[int, int | None], dict[int, _Piece]] = {}
        """The pieces of weights that are not all there, by slot and expert."""
        self._plans: dict[tuple[int, int | None], _Plan] = {}
        self.came = Counter[int]()
        """How many numbers of a slot."""
        self.bytes = 0  # of the bucket

    def look(self, name: str, value: Any) -> tuple[_Place, _Piece]:
        """Look where a tensor belongs, and whether it fits."""
        place = self._place_of(name)
        numbers = value.codes if isinstance(value, Fp8Weight) else value
        numbers = numbers.data if isinstance(numbers, ScaledTensor) else numbers
        piece = _Piece(name, numbers, getattr(value, "scale", None))
        _require_fitting(place, piece)
        return place, piece._replace(value=without_wrapping(numbers.detach()))

    def take(self, name: str, value: Any) -> None:
        """Keep a tensor, and plan what is complete."""
        place, piece = self.look(name, value)
        key = id(place.slot), place.expert
        pieces = self.open.setdefault(key, {})
        pieces[place.part] = piece
        self.came[key[0]] += piece.value.numel()
        self.bytes += piece.value.nbytes
        if len(pieces) == place.parts:
            self._plans[key] = _plan_of(place, [pieces[part] for part in range(place.parts)])
            del self.open[key]

    def write(self) -> None:
        by_device = defaultdict(list)
        for job in (job for plan in self._plans.values() for job in plan.jobs):
            by_device[job.source.device].append(job)
        for jobs in by_device.values():
            cast_many(jobs)
        for plan in self._plans.values():
            for target, value in plan.copies:
                target.copy_(value())
            increment_version(plan.tensor)
        self._plans, self.bytes = {}, 0

    def require_all(self, came: Counter[int], strict: bool) -> None:
        """Requires all pieces of weights and, if strict, so many numbers to be all."""
        missing = [
            slot.names[0]
            for slot in self.slots
            if any(slot_id == id(slot) for slot_id, _ in self.open)
            or (
                (strict and isinstance(slot.tensor, Parameter))
                and came[id(slot)] < _Place(slot).shape.numel()
            )
        ]
        if missing:
            expected = (
                "all rows of all of the model's parameters (strict=False: of those that come)"
            )
            raise invalid_argument(_NAME, "named_tensors", expected, f"less of {listed(missing)}")

    def _place_of(self, name: str) -> _Place:
        if name in self._by_name:
            return _Place(self._by_name[name])
        path, _, attribute = name.rpartition(".")
        above, _, layer = path.rpartition(".")
        for fused, parts in _FUSED.items():
            slot = self._by_name.get(f"{above}.{fused}.{attribute}".removeprefix("."))
            if layer in parts and slot is not None:
                return _Place(slot, None, parts.index(layer), len(parts))
        stack, _, number = above.rpartition(".")
        stack, layer = f"{stack}.".removeprefix("."), _OF_EXPERTS.get(layer, layer)
        part, parts = 0, (layer,)
        if layer in _GATED and f"{stack}gate_up_proj" in self._by_name:
            part, parts, layer = _GATED.index(layer), _GATED, "gate_up_proj"
        slot = self._by_name.get(stack + layer + ("" if attribute == "weight" else f"_{attribute}"))
        if slot is None or not number.isdecimal() or int(number) >= len(slot.tensor):
            known = listed(list(self._by_name), 3)
            expected = f"names of the model's parameters and buffers ({known}), or of their parts"
            raise invalid_argument(_NAME, "named_tensors", expected, repr(name))
        return _Place(slot, int(number), part, len(parts))


def _plan_of(place: _Place, pieces: list[_Piece]) -> _Plan:
    """The plan for a weight, or for one expert's, whose pieces are all there."""
    own, value, expert = place.slot.fp8, pieces[0].value, place.expert
    plan = _Plan(place.slot.tensor, [], [])
    rows = [len(piece.value) for piece in pieces] if place.parts > 1 else []
    if rows and sum(rows) != place.shape[0]:
        raise pieces[-1].wrong(f"{place.shape[0]} rows in all parts", rows)
    if own is not None and (ranks := _ranks_of_units(place, own, value)) is not None:
        local = value.to_local()
        if not isinstance(local, Fp8Weight):
            local = _planned(plan, own, [_Piece(pieces[0].name, local)])
        gather = partial(gathered_rows, _NAME, ranks=ranks, dim=0, same_scales=False)
        plan.copies.append((own, lambda: _like(own, gather(local.scaled))))
        return plan
    pieces = [
        piece._replace(value=piece.value.full_tensor()) if is_dtensor(piece.value) else piece
        for piece in pieces
    ]
    if own is None:
        whole = torch.cat([piece.value for piece in pieces]) if rows else pieces[0].value
        target = plan.tensor if expert is None else plan.tensor[expert]
        plan.copies.append((target, partial(_spread_as, target, whole)))
    elif place.cut is not None:
        new = _planned(plan, own, pieces)
        plan.copies.append((own, lambda: _like(own, place.cut.part_of(new.scaled)[0])))
    else:
        _plan_rows(plan, own if expert is None else _like(own, own.scaled[expert]), pieces)
    return plan


def _planned(plan: _Plan, own: Fp8Weight, pieces: list[_Piece]) -> Fp8Weight:
    """New codes and scales, cast as the weight is."""
    shape = sum(len(piece.value) for piece in pieces), *pieces[0].value.shape[1:]
    matrices = None if own.cast_as[1] is None else shape[0]
    scale = own.scale.new_empty(scale_shape(own.granularity, *shape, matrices=matrices))
    made = own.like(own.codes.new_empty(shape), scale)
    _plan_rows(plan, made, pieces)
    return made


def _plan_rows(plan: _Plan, target: Fp8Weight, pieces: list[_Piece]) -> None:
    """Plan codes and scales of pieces that are one below the other."""
    ends = list(accumulate(len(piece.value) for piece in pieces))
    unit = UNITS[target.granularity].rows
    if len(pieces) > 1 and (unit is None or any(end % unit for end in ends[:-1])):
        if any(piece.scale is not None for piece in pieces):
            expected = f"codes of all rows that share {target.granularity} scales"
            raise UnsupportedError(f"{_NAME}: expected {expected}, got {pieces[0].name}")
        whole = torch.cat([piece.value.to(target.device) for piece in pieces])
        pieces, ends = [_Piece(pieces[0].name, whole)], ends[-1:]
    for (name, value, scale), begin, end in zip(pieces, [0, *ends], ends, strict=False):
        part = target if len(pieces) == 1 else _like(target, target.scaled[begin:end])
        if scale is not None:
            plan.copies.append((part, joined(part, value, scale, name).detach))
        elif part.dim() == 2 or part.cast_as[1] is not None:
            format, matrices = part.cast_as
            source, out = walkable(value.to(part.device)), Target(format, out=part.scaled)
            plan.jobs.append(CastJob(source, out, matrices=matrices))
        else:
            plan.copies.append((part, value.detach))


def _require_fitting(place: _Place, piece: _Piece) -> None:
    expected = f"named_tensors['{piece.name}']"
    require_type(_NAME, expected, piece.value, Tensor, "a tensor or an FP8 weight")
    own, tensor = place.slot.fp8, local_part(place.slot.tensor)
    whole, got, dtype = place.shape, piece.value.shape, piece.value.dtype
    is_part = place.parts > 1 and len(got) == len(whole) and got[0] < whole[0]
    if got != whole and not (is_part and got[1:] == whole[1:]):
        of = f"part {place.part} of {place.parts} of " if place.parts > 1 else ""
        raise piece.wrong(f"{of}{[*whole]}, as the model has it", [*got])
    if tensor.is_meta or (own is None and isinstance(tensor, Fp8Weight)):
        raise piece.wrong("memory in the model, no DTensor of FP8", place.slot.tensor.device)
    kinds = f"{tensor.dtype}"
    if tensor.is_floating_point():
        kinds = "bfloat16, float16, float32" + ("" if own is None else " or FP8 with scales")
    is_right = is_wide(piece.value) if tensor.is_floating_point() else dtype == tensor.dtype
    if not is_right if piece.scale is None else own is None:
        raise piece.wrong(kinds, dtype)


def _like(weight: Fp8Weight, part: ScaledTensor) -> Fp8Weight:
    """Codes and scales, as another weight of the same kind."""
    shape = weight.scale.shape if part.shape == weight.shape else part.scale.shape
    return weight.like(part.data, part.scale.reshape(shape))


def _spread_as(target: Any, whole: Tensor) -> Tensor:
    """A tensor as it is, or with each rank's part of it where the target is."""
    if not is_dtensor(target):
        return whole
    from torch.distributed.tensor import distribute_tensor

    layout = target.device_mesh, target.placements
    return distribute_tensor(whole.to(target.device), *layout, src_data_rank=None)


def _ranks_of_units(place: _Place, own: Fp8Weight, value: Any) -> Ranks | None:
    """The ranks that have a DTensor, if each has whole units of scales, equally many: what it casts
    is then what a cast of the whole has there."""
    if not is_dtensor(value):
        return None
    cuts = [dim for dim, layout in enumerate(value.placements) if not layout.is_replicate()]
    unit, local = UNITS[own.granularity].rows, value.to_local()
    if unit is None or len(cuts) != 1 or own.shape != value.shape or place.cut is not None:
        return None
    layout, size = value.placements[cuts[0]], value.device_mesh.size(cuts[0])
    is_of_rows = type(layout).__name__ == "Shard" and layout.dim == 0
    units = len(own) % size == 0 and (own.dim() == 3 or len(own) // size % unit == 0)
    alike = not isinstance(local, Fp8Weight) or local.granularity == own.granularity
    if not (is_of_rows and units and alike):
        return None
    return ranks_of(_NAME, "named_tensors", value.device_mesh.get_group(cuts[0]))
