"""A weight that is there in FP8 alone, and is a tensor all the same."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..._core.errors import InvalidArgumentError, UnsupportedError, invalid_argument
from ..._core.formats import Format, FormatLike, Rule, format_of
from ..._core.recipe import Product, Recipe
from ..._core.scaled_tensor import ScaledTensor
from ..._core.torch import FLOAT8, NAMES, with_aligned_rows
from ..._ops.quantize import quantize
from ..recipes.choice import COMPUTE, require_compute
from .weight_layouts import as_matrix, of_matrix

_NAME: Final = "octofold.nn.Fp8Weight"
_PACKAGE: Final = Path(__file__).parents[2]
_aten: Final = torch.ops.aten
_WIDE: Final = (torch.float32, torch.float16, torch.bfloat16)


class Fp8Weight(Tensor):
    """A frozen weight in FP8, or a stack of some. For torch it is a tensor of `dtype`, and a
    parameter by torch.nn.Parameter(weight, requires_grad=False).

    codes: e4m3 or e5m2 [out, in], [experts, out, in], or of any shape with a scale for each of the
        first dimension ("channel").
    scale: float32 multipliers, in the shape that the granularity has (octofold.ops.scale_shape());
        of experts as octofold.grouped_gemm() takes them.
    granularity: which elements share a scale: "tensor", "channel", "1x128" or "128x128".
    dtype: of the numbers that it stands for.
    compute: how torch.nn.functional.linear(), or octofold.nn.Experts, computes with it. "native": x
        is cast to FP8 too, with a scale for 128 of its values (of experts as the recipe has it),
        where the device has such products. "weight-only": x of 16 bits is taken as it is. "copy":
        by a copy of the weight, dropped at once, and torch's product (not of experts). "auto": as
        the GPU and the number of tokens have it.
    compute_dtype: that layers compute in; x is converted, and the result back. None: that of x.
    rule, power_of_two: how numbers are cast that are written to it, as octofold.Format has them.
    recipe: an octofold.nn.Recipe of native products, of which `output` casts x, and backward has
        `grad_input`. None: x is cast with a scale for 128 of its values, and the gradient has dY as
        it is.
    few_tokens: up to so many of 16 bits are multiplied as they are. None: as `compute` has it.
    batch_invariant: a token's result, and its gradient, depend on that token alone
        (docs/batch-invariance.md). Not of float32, nor of bfloat16 where tensor cores have none.

    torch.nn.functional.linear() gives gradients by x and bias, and embedding() takes rows alone out
    of FP8. detach(), clone(), to(), pin_memory(), slices and splits between scales, deepcopy, files
    and torch.compile keep codes and scales: another dtype changes the tensor's name alone. Any
    other operation sees the numbers in `dtype`, and makes plain tensors; what writes to the weight
    (copy_(), add_()) casts it again, and FP8 codes without scales are refused there.
    """

    COMPUTE: ClassVar = (*COMPUTE, "copy")
    OPTIONS: ClassVar = (
        *("compute", "compute_dtype", "rule", "power_of_two"),
        *("recipe", "few_tokens", "batch_invariant"),
    )

    codes: Tensor
    scale: Tensor
    granularity: str
    compute: str
    compute_dtype: torch.dtype | None
    rule: str
    power_of_two: bool | None
    recipe: Recipe | None
    few_tokens: int | None
    batch_invariant: bool

    @staticmethod
    def __new__(
        cls,
        codes: Tensor,
        scale: Tensor | None = None,
        granularity: str = "128x128",
        dtype: torch.dtype = torch.bfloat16,
        compute: str = "auto",
        compute_dtype: torch.dtype | None = None,
        rule: str = "deepgemm",
        power_of_two: bool | None = None,
        recipe: Recipe | None = None,
        few_tokens: int | None = None,
        batch_invariant: bool = False,
        requires_grad: bool | None = None,
    ) -> "Fp8Weight":
        """requires_grad: for those who call a parameter's class as torch.nn.Parameter's; of an
        Fp8Weight alone, it makes a parameter, and of numbers, which accelerate brings from disk, a
        plain one."""
        is_number = requires_grad is not None and codes.dtype in _WIDE and scale is None
        if isinstance(codes, Fp8Weight) or is_number:
            parameter: Fp8Weight = Parameter(codes, False)  # type: ignore[assignment]
            return parameter
        if scale is None or codes.dtype not in FLOAT8:
            raise invalid_argument(_NAME, "codes", "FP8 codes with their scales", codes.dtype)
        require_compute(_NAME, compute, Fp8Weight.COMPUTE)
        made: Fp8Weight = Tensor._make_wrapper_subclass(
            cls, codes.shape, strides=codes.stride(), dtype=dtype, device=codes.device
        )
        made.codes, made.scale, made.granularity = codes, scale, granularity
        made.compute, made.compute_dtype = compute, compute_dtype
        made.rule, made.power_of_two = rule, power_of_two
        made.recipe, made.few_tokens, made.batch_invariant = recipe, few_tokens, batch_invariant
        return made

    @classmethod
    def of(
        cls, scaled: ScaledTensor, dtype: torch.dtype, format: Format | None = None, **options: Any
    ) -> "Fp8Weight":
        """The weight of these codes and scales, in the same memory. format: how numbers are cast
        that are written to it. The options are the class's."""
        if format is not None:
            options |= {"rule": format.rule.value, "power_of_two": format.power_of_two}
        return cls(scaled.data, scaled.scale, scaled.granularity, dtype, **options)

    @classmethod
    def cast(
        cls,
        weight: Tensor,
        format: FormatLike = "128x128",
        matrices: int | None = None,
        **options: Any,
    ) -> "Fp8Weight":
        """Cast a weight of bfloat16, float16 or float32: [out, in], or of more dimensions with
        scales for each of the first ("channel"); or a stack [experts, out, in] of so many
        `matrices`, each with scales of its own. The options are the class's.

        Raises InvalidArgumentError, which names the argument.
        """
        format, numbers = format_of(_NAME, format), weight.detach()
        if matrices is not None:
            allowed = {*weight.shape[:1], *((1,) if format.granularity == "tensor" else ())}
            if weight.dim() != 3 or matrices is True or matrices not in allowed:
                expected = 'the experts of a weight [experts, out, in], or 1 for "tensor"'
                raise invalid_argument(
                    _NAME, "matrices", expected, f"{matrices!r} of {[*weight.shape]}"
                )
            scaled = quantize(numbers.contiguous(), format, matrices=matrices)
        elif weight.dim() < 2 or (weight.dim() > 2 and format.granularity != "channel"):
            expected = "[out, in], or scales of channels, or a stack of so many matrices="
            raise invalid_argument(_NAME, "weight", expected, list(weight.shape))
        else:
            scaled = quantize(as_matrix(numbers), format)
            if weight.dim() > 2:
                codes = of_matrix(scaled.data.contiguous(), weight)
                scaled = ScaledTensor(codes, scaled.scale, scaled.granularity)
        return cls.of(scaled, weight.dtype, format, **options)

    def scale_name(self, name: str = "weight") -> str:
        """The name of the scales in files that have the codes by this name."""
        return f"{name}_scale_inv" if self.granularity == "128x128" else f"{name}_scale"

    @property
    def scaled(self) -> ScaledTensor:
        """Codes and scales as an octofold.ScaledTensor, which shares their memory."""
        return ScaledTensor(self.codes, self.scale, self.granularity)

    @property
    def cast_as(self) -> tuple[Format, int | None]:
        """How numbers are cast that are written to it, and as how many matrices."""
        kind = NAMES[self.codes.dtype], self.granularity
        format = Format(*kind, rule=self.rule, power_of_two=self.power_of_two)
        stack = self.codes.dim() == 3 and not self._is_of_firsts()
        count = self.scale.numel() if self.granularity == "tensor" else len(self.codes)
        return format, count if stack else None

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The numbers, as a new tensor of `dtype`; None: of the weight's own."""
        dtype = dtype or self.dtype
        exact = dtype if dtype in _WIDE else torch.float32
        codes = self.codes
        if self._is_of_firsts():
            matrix = ScaledTensor(as_matrix(codes), self.scale, self.granularity)
            return of_matrix(matrix.dequantize(exact), codes).to(dtype)
        numbers: Tensor = self.scaled.dequantize(exact)
        return numbers.to(dtype)

    def recast(self, numbers: Tensor) -> None:
        """Take other numbers, cast as the weight was: in place."""
        self._take(self.cast_like(numbers.to(self.codes.device)))

    def cast_like(self, numbers: Tensor) -> "Fp8Weight":
        """Another of other numbers of its shape, where these are, cast as the weight was."""
        cast = Fp8Weight.cast(numbers if numbers.dtype in _WIDE else numbers.float(), *self.cast_as)
        return self.like(cast.codes, cast.scale)

    def like(
        self, codes: Tensor, scale: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> "Fp8Weight":
        """Another with these codes, and scales if given."""
        scale = self.scale if scale is None else scale
        granularity, *others = self._context()
        return Fp8Weight(codes, scale, granularity, dtype or self.dtype, *others)

    def aligned(self) -> "Fp8Weight":
        """Itself, or another whose rows begin at multiples of 16 bytes, as products read them; a
        file may have them otherwise."""
        codes = self.codes if self._is_of_firsts() else with_aligned_rows(self.codes)
        return self if codes is self.codes else self.like(codes)

    def named(self, dtype: torch.dtype) -> "Fp8Weight":
        """Another tensor of this dtype, in the same memory; to() copies."""
        if self.dtype == dtype:
            return self.detach()  # type: ignore[return-value]
        compiling = torch.compiler.is_compiling()  # which makes no tensors of classes
        made: Any = self.to(dtype) if compiling else self.like(self.codes, dtype=dtype)
        return made  # type: ignore[no-any-return]

    def requires_grad_(self, mode: bool = True) -> Self:
        """A parameter stays as it is, so that model.requires_grad_() may be called."""
        if not isinstance(self, Parameter):
            super().requires_grad_(mode)
        return self

    def share_memory_(self) -> Self:
        """Moves codes and scales to memory that processes share."""
        for part in (self.codes, self.scale):
            part.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def element_size(self) -> int:
        """The bytes of a code."""
        return 1

    @property
    def itemsize(self) -> int:  # type: ignore[override]
        """element_size()"""
        return 1

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """The bytes of codes and scales."""
        return self.codes.nbytes + self.scale.nbytes

    def _take(self, other: "Fp8Weight") -> None:
        with torch.no_grad():
            self.codes.view(torch.uint8).copy_(other.codes.view(torch.uint8))
            self.scale.copy_(other.scale)

    def _is_of_firsts(self) -> bool:
        return self.granularity == "channel" and self.codes.dim() > 2 and self.scale.dim() == 1

    def _context(self) -> tuple[Any, ...]:
        return self.granularity, *(getattr(self, name) for name in self.OPTIONS)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], (self.dtype, *self._context())

    @staticmethod
    def __tensor_unflatten__(
        tensors: dict[str, Tensor], context: Any, size: Any, stride: Any
    ) -> "Fp8Weight":
        dtype, granularity, *others = context
        return Fp8Weight(tensors["codes"], tensors["scale"], granularity, dtype, *others)

    def _stable_hash_for_caching(self) -> str:
        """Returns a text with what torch.compile's cache is to know of the weight. What computes
        with it is in this package, and in no graph that the cache looks at."""
        return f"{_digest_of_package()}, {self!r}, {self.dtype}, {self._context()}"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # pickle reads no FP8 of torch's: codes travel as bytes, beside their dtype.
        codes, is_parameter = self.codes, isinstance(self, Parameter)
        context = (self.dtype, *self._context())
        return _rebuilt, (codes.view(torch.uint8), codes.dtype, self.scale, context, is_parameter)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        kind = f"{self.codes.dtype}, {self.granularity}, compute={self.compute}"
        kind += "" if self.recipe is None else f", recipe={self.recipe}"
        kind += f", few_tokens={self.few_tokens}" if self.few_tokens else ""
        kind += ", batch_invariant=True" if self.batch_invariant else ""
        return f"Fp8Weight({list(self.codes.shape)}, {kind})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        own = FUNCTIONS.get(func)
        if own is not None:
            return own(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        own, kwargs = _KEPT.get(func), kwargs or {}
        first = args[0] if args else None
        if own is not None and isinstance(first, Fp8Weight):
            with torch.inference_mode(first.is_inference()):  # as torch's views are
                made = own(*args, **kwargs)
                if made is not None:
                    correct: Callable[..., Any] = return_and_correct_aliasing
                    return correct(func, args, kwargs, made)
        if func.namespace == "c10d":  # which write, and do not say where
            expected = "weight.scaled's codes and scales"
            raise UnsupportedError(f"{_NAME}: expected {expected} in {func}, got the weight itself")
        leaves, tree = tree_flatten((args, kwargs))
        numbers = [one.dequantize() if isinstance(one, Fp8Weight) else one for one in leaves]
        plain_args, plain_kwargs = tree_unflatten(numbers, tree)
        result = func(*plain_args, **plain_kwargs)
        if not func._schema.is_mutable:
            return result
        written, back = _written(func, args, kwargs), {}
        for one, plain in zip(leaves, numbers, strict=True):
            if isinstance(one, Fp8Weight) and id(one) in written:
                one.recast(plain)
                back[id(plain)] = one
        return tree_map(lambda made: back.get(id(made), made), result)


@functools.cache
def _digest_of_package() -> str:
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {}
"""Functions of torch that compute with codes, by that function. They get its arguments, of which
one is an Fp8Weight."""


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
    """The ids of the arguments that an operation writes to, and of what is in them."""
    arguments = func._schema.arguments
    named = {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    values = {**named, **kwargs}
    writes = [one.name for one in arguments if one.alias_info and one.alias_info.is_write]
    return {id(leaf) for name in writes for leaf in tree_leaves(values.get(name))}


def _rebuilt(
    codes: Tensor, dtype: torch.dtype, scale: Tensor, context: Any, is_parameter: bool
) -> Fp8Weight:
    weight = Fp8Weight.__tensor_unflatten__(
        {"codes": codes.view(dtype), "scale": scale}, context, None, None
    )
    return Fp8Weight(weight) if is_parameter else weight


def _as_it_is(weight: Fp8Weight) -> Fp8Weight:
    return weight.like(weight.codes)


def _view(
    weight: Fp8Weight, size: Any, stride: Any = None, storage_offset: int | None = None
) -> Fp8Weight | None:
    """Views that are the tensor itself, as FSDP and DTensor make them."""
    same = stride is None or tuple(stride) == weight.codes.stride()
    same = same and tuple(size) == tuple(weight.codes.shape) and not storage_offset
    return weight.like(weight.codes) if same else None


def _clone(weight: Fp8Weight, **options: Any) -> Fp8Weight:
    codes = _bytes(weight.codes, torch.clone, **options)
    return weight.like(codes, weight.scale.clone()).aligned()


def _empty_like(weight: Fp8Weight, dtype: Any = None, **options: Any) -> Fp8Weight:
    codes = torch.empty_like(weight.codes, **options)
    scale = torch.empty_like(weight.scale, device=codes.device)
    return weight.like(codes, scale, dtype)


def _to_copy(
    weight: Fp8Weight,
    dtype: torch.dtype | None = None,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: Any = torch.preserve_format,
    **_: Any,
) -> Fp8Weight:
    """To another device with the scales as they are best there; to another dtype in name alone."""
    scaled = weight.scaled
    if device is None or torch.device(device) == scaled.data.device:
        scale = scaled.scale.clone()
    elif weight._is_of_firsts():
        scale = scaled.scale.to(device, non_blocking=non_blocking)
    else:
        scaled = scaled.to(device)
        scale = scaled.scale
    codes = _bytes(
        scaled.data,
        Tensor.to,
        device or scaled.data.device,
        non_blocking=non_blocking,
        copy=scaled.data is weight.codes,
        memory_format=memory_format,
    )
    return weight.like(codes, scale, dtype)


def _pinned(weight: Fp8Weight, *others: Any) -> Fp8Weight:
    return weight.like(weight.codes.pin_memory(), weight.scale.pin_memory())


def _copied(weight: Fp8Weight, source: Tensor, non_blocking: bool = False) -> Fp8Weight | None:
    """Another weight of the same kind to the byte; else numbers are cast."""
    if source.dtype in FLOAT8:
        got = f"{source.dtype} alone"
        raise invalid_argument(_NAME, "copy_", "numbers, or an Fp8Weight with its scales", got)
    kinds = [(w.codes.dtype, w.granularity) for w in (weight, source) if isinstance(w, Fp8Weight)]
    if len(kinds) < 2 or kinds[0] != kinds[1] or weight.codes.shape != source.shape:
        return None
    assert isinstance(source, Fp8Weight)
    weight._take(source)
    return weight


def _sliced(
    weight: Fp8Weight,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Fp8Weight | None:
    """Views of rows and columns; None for what cuts a scale."""
    codes, scale, dim = weight.codes, weight.scale, dim % weight.codes.dim()
    begin, end, _ = slice(start, end, step).indices(codes.shape[dim])
    end = max(begin, end)
    if step != 1 or dim not in ((0, 1) if codes.dim() == 2 else (0,)):
        return None
    if weight._is_of_firsts():
        return weight.like(codes[begin:end], scale[begin:end])
    if dim == 0:
        try:
            rows = weight.scaled[begin:end]
        except InvalidArgumentError:
            return None
        return weight.like(rows.data, rows.scale)
    if weight.granularity in ("1x128", "128x128"):
        if any(column != codes.shape[1] and column % 128 for column in (begin, end)):
            return None
        scale = scale[:, begin // 128 : (end + 127) // 128]
    return weight.like(codes[:, begin:end], scale)


def _split(weight: Fp8Weight, size: int, dim: int = 0) -> list[Fp8Weight] | None:
    parts = [
        _sliced(weight, dim, begin, begin + size)
        for begin in range(0, weight.codes.shape[dim], size)
    ]
    return None if None in parts else [part for part in parts if part is not None]


def _bytes(codes: Tensor, function: Callable[..., Tensor], *others: Any, **options: Any) -> Tensor:
    return function(codes.view(torch.uint8), *others, **options).view(codes.dtype)


_set_data: Final[Any] = Tensor.data.__set__  # type: ignore[attr-defined]


def _given_data(weight: Any, value: Tensor) -> None:
    """weight.data = value"""
    if not isinstance(weight, Fp8Weight):
        value = value.dequantize() if isinstance(value, Fp8Weight) else value
    elif not isinstance(value, Fp8Weight):
        made = _empty_like(weight, device=value.device)
        made.recast(value)
        value = made
    with torch._C.DisableTorchFunctionSubclass():
        _set_data(weight, value)
    if isinstance(weight, Fp8Weight) and isinstance(value, Fp8Weight):
        weight.codes, weight.scale = value.codes, value.scale


FUNCTIONS[Tensor.numpy] = lambda weight, **options: weight.dequantize().numpy(**options)
FUNCTIONS[_set_data] = _given_data
_KEPT: Final[dict[Any, Callable[..., Any]]] = {
    _aten.detach.default: _as_it_is,
    _aten.alias.default: _as_it_is,
    _aten.view.default: _view,
    _aten.as_strided.default: _view,
    _aten.clone.default: _clone,
    _aten.empty_like.default: _empty_like,
    _aten._to_copy.default: _to_copy,
    _aten._pin_memory.default: _pinned,
    _aten.is_pinned.default: lambda weight, *_: weight.codes.is_pinned(),
    _aten.copy_.default: _copied,
    _aten.slice.Tensor: _sliced,
    _aten.split.Tensor: _split,
}
"""Operations whose results are such weights again; those that return None see the numbers."""

torch.serialization.add_safe_globals([_rebuilt, Recipe, Product, Format, Rule])
