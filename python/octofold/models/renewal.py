"""Renewing a model's weights where they lie, as reinforcement learning does after each step of its
trainer: what is FP8 is cast into the memory that it has, which CUDA graphs read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
from ..nn.casting.casts import joined, walkable
from ..nn.casting.fp8_weight import Fp8Weight
from ..nn.casting.step_casts import renew_casts
from ..nn.casting.weight_tensors import is_wide, without_wrapping
from ..nn.layers.fp8_parameters import joined as with_scales
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
    named_tensors: a state_dict(), or pairs of a name and a tensor, which are drawn one by one, in
        any order and on any device. Of bfloat16, float16 or float32 they are cast as the weight
        was; an Fp8Weight or a ScaledTensor is copied. With a DTensor all ranks of its mesh call
        this, in one order: where each has whole units of scales it casts them and codes travel,
        else numbers. Names and shapes are those of state_dict(), or of q_proj, k_proj and v_proj
        for a qkv_proj, gate_proj and up_proj for a gate_up_proj, and
        `<experts>.N.gate_proj.weight`, `up_proj` and `down_proj` (or w1, w3, w2) for a layer's
        experts. Of two of one name in a bucket, or of one tied weight, the later counts.
    strict: whether parameters that get nothing, or not all of their experts, are an error. All
        parts of a weight have to come in one call in any case.
    bucket_bytes: how much is drawn before it is written, by one launch for each kind of cast, and
        the most memory that parts take to be put together. Until then a tensor has to stay what it
        is.

    Nothing of a bucket is written before all of it is known to be right, and nothing at all before
    all of a mapping or a list is; where tensors were written before an error, a note on it says so.
    What is not FP8 is copied. Casts that octofold.nn.cast_after_step() holds are made anew.

    Raises InvalidArgumentError, which names the tensor, what is expected and what came;
    UnsupportedError for FP8 parts, and for numbers of single experts, that share scales with
    others.
    """
    require_type(_NAME, "model", model, Module, "a torch.nn.Module")
    renewal = _Renewal(model, bucket_bytes)
    at_once = isinstance(named_tensors, Mapping | Sequence)
    pairs = named_tensors.items() if isinstance(named_tensors, Mapping) else named_tensors
    try:
        for name, value in pairs:
            renewal.take(name, value)
            if not at_once and renewal.bytes >= bucket_bytes:
                renewal.write()
        renewal.require_all(strict)
        renewal.write()
    except Exception as error:
        if renewal.written:
            error.add_note(f"{_NAME}: {len(renewal.written)} tensors were written before this")
        raise
    finally:
        renew_casts(slot.tensor for slot in renewal.written)


class _Place(NamedTuple):
    """The place of a tensor: rows of a parameter, or of one expert's matrix in it."""

    slot: Slot
    expert: int | None = None
    part: int = 0
    parts: int = 1

    @property
    def target(self) -> Any:
        """The tensor that is written to, by this part and the others."""
        tensor, fp8 = self.slot.tensor, self.slot.fp8
        if self.expert is None or fp8 is None:
            return tensor if self.expert is None else tensor[self.expert]
        matrix = fp8.scaled[self.expert]
        return fp8.like(matrix.data, matrix.scale)

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


class _Renewal:
    """The tensors of a bucket, and where they belong."""

    def __init__(self, model: Module, bucket_bytes: int) -> None:
        self._slots, self._bucket_bytes = slots_of(model), bucket_bytes
        self._by_name = {name: slot for slot in self._slots for name in slot.names}
        self._weights: dict[tuple[Slot, int | None], tuple[_Place, dict[int, Tensor]]] = {}
        """By slot and expert: a place there, and the parts that came."""
        self._came: defaultdict[Slot, set[int | None]] = defaultdict(set)
        """The experts that came; None: all in one."""
        self.written: set[Slot] = set()
        self.bytes = 0

    def take(self, name: str, value: Any) -> None:
        """Keep a tensor until write(). Raises where it does not fit."""
        place = self._place_of(name)
        before, parts = self._weights.get((place.slot, place.expert), (place, {}))
        if before.parts != place.parts:
            parts = {}
        parts[place.part] = value = _fitting(place, name, value)
        self._weights[place.slot, place.expert] = place, parts
        if len(parts) == place.parts > 1:
            _require_together(place, name, [parts[part] for part in range(place.parts)])
        came = self._came[place.slot]
        came.add(place.expert)
        if None in came and len(came) > 1:
            raise _wrong(name, "experts one by one, or all in one tensor", "both")
        self.bytes += value.nbytes

    def require_all(self, strict: bool) -> None:
        """Requires all parts of weights and, if strict, all parameters with all experts."""
        weights = self._weights.values()
        missing = {place.slot for place, parts in weights if len(parts) < place.parts}
        for slot in self._slots if strict else ():
            came = self._came[slot]
            is_whole = None in came or (came and len(came) == len(slot.tensor))
            if isinstance(slot.tensor, Parameter) and not is_whole:
                missing.add(slot)
        if missing:
            expected = "all rows of all parameters (strict=False: of those that come)"
            names = [slot.names[0] for slot in self._slots if slot in missing]
            raise invalid_argument(_NAME, "named_tensors", expected, f"less of {listed(names)}")

    def write(self) -> None:
        """Write weights whose parts are all there: copies at once, and casts together."""
        weights, self._weights, self.bytes = self._weights, {}, 0
        jobs, size = list[CastJob](), 0
        is_inference = any(slot.tensor.is_inference() for slot in self._slots)
        with torch.inference_mode(is_inference), torch.no_grad():
            for key, (place, parts) in weights.items():
                if len(parts) < place.parts:
                    self._weights[key] = place, parts
                    continue
                jobs += _written(place, [parts[part] for part in range(place.parts)])
                size += sum(part.nbytes for part in parts.values())
                if size >= self._bucket_bytes:
                    _cast_all(jobs)
                    jobs, size = [], 0
                increment_version(place.slot.tensor)
                self.written.add(place.slot)
            _cast_all(jobs)

    def _place_of(self, name: str) -> _Place:
        require_type(_NAME, "named_tensors", name, str, "names with their tensors")
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


def _fitting(place: _Place, name: str, value: Any) -> Tensor:
    """Returns what came, if it fits: numbers, or an Fp8Weight like the model's."""
    fp8, tensor, whole = place.slot.fp8, local_part(place.slot.tensor), place.shape
    codes = value.codes if isinstance(value, Fp8Weight) else value
    codes = codes.data if isinstance(codes, ScaledTensor) else codes
    require_type(_NAME, f"named_tensors['{name}']", codes, Tensor, "a tensor or an FP8 weight")
    is_part = place.parts > 1 and len(whole) == codes.dim() and codes.shape[0] < whole[0]
    if codes.shape != whole and not (is_part and codes.shape[1:] == whole[1:]):
        of = f"part {place.part} of {place.parts} of " if place.parts > 1 else ""
        raise _wrong(name, f"{of}{[*whole]}, as the model has it", [*codes.shape])
    if tensor.is_meta or codes.is_meta or (fp8 is None and isinstance(tensor, Fp8Weight)):
        expected = "memory, here and in the model (where no DTensor is FP8)"
        raise _wrong(name, expected, f"{codes.device} for {place.slot.tensor.device}")
    is_alike = codes.dtype == tensor.dtype or (is_wide(codes) and is_wide(tensor))
    if not is_alike if codes is value else fp8 is None:
        kinds = "bfloat16, float16, float32" if is_wide(tensor) else f"{tensor.dtype}"
        raise _wrong(name, kinds + ("" if fp8 is None else " or FP8 with scales"), codes.dtype)
    if fp8 is not None and place.expert is not None and fp8.scale.numel() == 1 < len(fp8):
        expected = "all experts in one tensor, as they share a scale"
        raise UnsupportedError(f"{_NAME}: expected {expected}, got '{name}'")
    if fp8 is None or codes is value:
        return without_wrapping(codes.detach())  # type: ignore[no-any-return]
    is_whole = codes.shape == fp8.shape
    shape = fp8.scale.shape if is_whole else scale_shape(fp8.granularity, *codes.shape)
    return with_scales(fp8.like(fp8.codes, fp8.scale.new_empty(shape)), codes, value.scale, name)


def _require_together(place: _Place, name: str, parts: list[Tensor]) -> None:
    """Requires all rows of a weight in its parts, and FP8 ones to have scales of their own."""
    rows, fp8 = [len(part) for part in parts], place.slot.fp8
    if sum(rows) != place.shape[0]:
        raise _wrong(name, f"{place.shape[0]} rows in all parts", rows)
    if fp8 is None or not any(isinstance(part, Fp8Weight) for part in parts):
        return
    unit = UNITS[fp8.granularity].rows
    are_apart = unit is not None and all(end % unit == 0 for end in accumulate(rows[:-1]))
    if not are_apart or not all(isinstance(part, Fp8Weight) for part in parts):
        expected = f"FP8 in all parts, which share no {fp8.granularity} scales"
        raise UnsupportedError(f"{_NAME}: expected {expected}, got '{name}'")


def _written(place: _Place, parts: list[Any]) -> list[CastJob]:
    """Write a weight, if it is copied; returns the cast that is to be made of another."""
    target: Any = place.target
    ranks = _ranks_of_units(place, parts[0])
    if ranks is not None:
        part = parts[0].to_local()
        part = part if isinstance(part, Fp8Weight) else target.cast_like(part.to(target.device))
        codes = gathered_rows(_NAME, part.scaled, ranks, 0, same_scales=False)
        target.copy_(target.like(codes.data, codes.scale.reshape(target.scale.shape)))
        return []
    whole = (part.full_tensor() if is_dtensor(part) else part for part in parts)
    value: Any = joined(tuple(part.to(target.device) for part in whole))
    if place.slot.fp8 is None:
        if is_dtensor(target):
            from torch.distributed.tensor import distribute_tensor

            layout = target.device_mesh, target.placements
            value = distribute_tensor(value, *layout, src_data_rank=None)
        target.copy_(value)
        return []
    format, matrices = target.cast_as
    is_coded, is_matrix = isinstance(value, Fp8Weight), target.dim() == 2 or matrices is not None
    if is_matrix and place.cut is None and not is_coded:
        out = Target(format, out=target.scaled)
        return [CastJob(walkable(value), out, matrices=matrices)]
    codes = value if is_coded else target.cast_like(value)
    if place.cut is not None:
        part = place.cut.part_of(codes.scaled).weight
        codes = target.like(part.data, part.scale)
    target.copy_(codes)
    return []


def _ranks_of_units(place: _Place, value: Any) -> Ranks | None:
    """The ranks that have a DTensor for an FP8 weight, if each has whole units of scales, equally
    many: what it casts is then what a cast of the whole has there, and codes travel, not numbers.
    """
    fp8 = place.slot.fp8
    if fp8 is None or not is_dtensor(value) or place.cut is not None or fp8.shape != value.shape:
        return None
    cuts = [(dim, cut) for dim, cut in enumerate(value.placements) if not cut.is_replicate()]
    if len(cuts) != 1 or not cuts[0][1].is_shard(0):
        return None
    rows, rest = divmod(len(fp8), value.device_mesh.size(cuts[0][0]))
    unit, local = UNITS[fp8.granularity].rows, value.to_local()
    has_units = rest == 0 and unit is not None and (fp8.dim() == 3 or rows % unit == 0)
    if not has_units or getattr(local, "granularity", fp8.granularity) != fp8.granularity:
        return None
    return ranks_of(_NAME, "named_tensors", value.device_mesh.get_group(cuts[0][0]))


def _cast_all(jobs: list[CastJob]) -> None:
    for device in {job.source.device for job in jobs}:
        cast_many([job for job in jobs if job.source.device == device])


def _wrong(name: str, expected: str, got: object) -> Exception:
    return invalid_argument(_NAME, f"named_tensors['{name}']", expected, got)
