"""How numbers are cast to FP8, as one value; and the names of dtypes and granularities in it."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from .errors import InvalidArgumentError, invalid_argument

DTypeLike: TypeAlias = Annotated[Any, "dtype"]
"""A name ("e4m3", "bfloat16" ...), a NumPy or ml_dtypes type, or a torch.dtype."""

NUMPY_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int32": np.dtype(np.int32),
}
FP8: Final = ("e4m3", "e5m2")
WIDE: Final = ("float32", "float16", "bfloat16")
HALF: Final = ("float16", "bfloat16")
ALL: Final = (*WIDE, *FP8)  # of numbers; int32 counts and places

# The names that others have for what Octofold calls otherwise.
DLPACK_NAMES: Final = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}

# Names as they may be spelled. By texts alone: torch.compile follows no dictionary by dtypes.
SPELLINGS: Final[dict[str, str]] = {
    **{name: name for name in ALL},
    **{name: own for own, name in DLPACK_NAMES.items()},
}


def dtype_name(
    operation: str, argument: str, dtype: DTypeLike, among: tuple[str, ...] = ALL
) -> str:
    """Octofold's own name of a dtype, which has to be one of `among`."""
    name = SPELLINGS.get(dtype if isinstance(dtype, str) else _dtype_text(dtype), "")
    if name not in among:
        raise invalid_argument(operation, argument, f"one of {', '.join(among)}", repr(dtype))
    return name


def dtype_of_result(
    operation: str, out: Any, out_dtype: DTypeLike | None, default: str = "bfloat16"
) -> str:
    """The dtype of a new result, or that of `out`, the array to write to, as out_dtype says it;
    without out_dtype the default, or "" beside `out`."""
    if out_dtype is None:
        return default if out is None else ""
    name = dtype_name(operation, "out_dtype", out_dtype, WIDE)
    if out is not None and name != (expected := dtype_name(operation, "out", out.dtype)):
        raise invalid_argument(operation, "out_dtype", f"{expected}, as is 'out'", repr(out_dtype))
    return name


def _dtype_text(dtype: DTypeLike) -> str:
    if dtype is None:  # np.dtype(None) is float64
        return ""
    if str(dtype).startswith("torch."):
        return str(dtype).removeprefix("torch.")
    try:
        return np.dtype(dtype).name
    except TypeError:
        return ""


class Unit(NamedTuple):
    """Rows and columns of the elements that share a scale; None: all that there are."""

    rows: int | None
    cols: int | None

    @property
    def is_of_a_row(self) -> bool:
        """True if scales go with rows: whoever takes some rows takes their scales."""
        return self.rows == 1

    @property
    def is_square(self) -> bool:
        """True if a transpose can have the same scales."""
        return self.rows == self.cols


UNITS: Final = {
    "tensor": Unit(None, None),
    "channel": Unit(1, None),
    "1x128": Unit(1, 128),
    "128x128": Unit(128, 128),
}
"""All that is known of granularities, as the library's kGranularityTable (vocabulary.h)."""

GRANULARITIES: Final = tuple(UNITS)
"""Every granularity there is."""

BY_COLUMNS: Final = frozenset(
    name for name, unit in UNITS.items() if unit.is_of_a_row and unit.cols is not None
)
"""The granularities whose scales lie column by column on GPUs, as products read them fastest."""


OVERFLOWS: Final = ("saturate", "nan")


class Rule(StrEnum):
    """The libraries whose casts can be followed. A rule says how a scale is computed
    from the largest magnitude, and how codes are rounded. docs/numerics.md has the arithmetic of
    each.
    """

    DEEPGEMM = "deepgemm"
    DEEPGEMM_CUDA = "deepgemm-cuda"
    TILEKERNELS = "tilekernels"
    VLLM = "vllm"
    VLLM_PER_TOKEN = "vllm-per-token"
    VLLM_TRITON = "vllm-triton"
    TRANSFORMER_ENGINE = "te"
    TORCHAO = "torchao"
    TORCHAO_TENSOR = "torchao-tensor"
    TORCHAO_TENSOR_CUDA = "torchao-tensor-cuda"
    DEEPSEEK = "deepseek"
    TRANSFORMERS = "transformers"
    COMPRESSED_TENSORS = "compressed-tensors"
    COMPRESSED_TENSORS_0_12 = "compressed-tensors-0.12"


_RULES: Final[dict[str, Rule]] = {rule.value: rule for rule in Rule}


@dataclass(frozen=True, init=False)
class Format:
    """How numbers are cast to FP8, as one value.

    dtype: "e4m3" (float8_e4m3fn) or "e5m2"; a NumPy, ml_dtypes or torch dtype is accepted too.
    granularity: which elements share a scale: "tensor" (all), "channel" (a row), "1x128" (128
        elements of a row) or "128x128" (a square). Partial units at the edges have their own scale.
    rule: the library whose arithmetic is followed, a Rule or its text.
    power_of_two: whether scales are rounded to powers of two. None: as the rule does by default
        (only "te" rounds). Given scales are never rounded.
    overflow: "saturate" clamps to the largest finite value, "nan" overflows as ml_dtypes does.

    Formats are compared and hashed by value. Wherever a format is expected, a text is accepted too.
    It has words in any order, each a dtype, a granularity or a rule: "1x128", "e5m2 channel",
    "128x128 torchao". What it does not name has its default.
    Raises InvalidArgumentError, which names the field.
    """

    dtype: str
    granularity: str
    _: KW_ONLY  # torch.compile of torch 2.9 makes a Format by what its fields say
    rule: Rule
    power_of_two: bool | None
    overflow: str

    # power_of_two, overflow and rule as ops take them: no field, but kept, as the host's time
    # counts. (torch.compile does not follow a cached_property of Python 3.11.)
    if TYPE_CHECKING:
        options: tuple[bool | None, str, str]

    def __init__(
        self,
        dtype: DTypeLike = "e4m3",
        granularity: str = "1x128",
        *,
        rule: Rule | str = Rule.DEEPGEMM,
        power_of_two: bool | None = None,
        overflow: str = "saturate",
    ) -> None:
        set_field = object.__setattr__  # the value is frozen
        set_field(self, "dtype", dtype_name("Format", "dtype", dtype, FP8))
        set_field(self, "granularity", _one_of("granularity", granularity, GRANULARITIES))
        # torch.compile of torch 2.9 does not take a StrEnum for the text that it is.
        text = rule.value if isinstance(rule, Rule) else rule
        set_field(self, "rule", _RULES[_one_of("rule", text, _RULES)])
        if power_of_two is not None and not isinstance(power_of_two, bool):
            expected = "True, False or None"
            raise invalid_argument("Format", "power_of_two", expected, repr(power_of_two))
        set_field(self, "power_of_two", power_of_two)
        set_field(self, "overflow", _one_of("overflow", overflow, OVERFLOWS))
        set_field(self, "options", (power_of_two, self.overflow, self.rule.value))

    def __str__(self) -> str:
        """The words of the format, and what no word says."""
        words = [self.dtype, self.granularity, self.rule.value]
        if self.power_of_two is not None:
            words.append(f"power_of_two={self.power_of_two}")
        if self.overflow != "saturate":
            words.append(f"overflow={self.overflow}")
        return " ".join(words)


FormatLike: TypeAlias = Format | str
"""A Format, or its words."""

_PARSED: Final[dict[str, Format]] = {}


def format_of(operation: str, format: FormatLike, argument: str = "format") -> Format:
    """A format as it is, a text as what it stands for; anything else is the operation's error."""
    if isinstance(format, Format):
        return format
    parsed = _PARSED.get(format) if isinstance(format, str) else None
    if parsed is None:
        dtype, granularity, rule = words_of(operation, format, argument)
        rule = rule or Rule.DEEPGEMM
        parsed = Format(dtype or "e4m3", granularity or "1x128", rule=rule)
        _PARSED[format] = parsed
    return parsed


def require_alike(operation: str, left: str, a: Format, right: str, b: Format) -> None:
    """Checks that two casts of one matrix differ in granularity alone."""
    for name in ("dtype", "rule", "power_of_two", "overflow"):
        mine, other = getattr(a, name), getattr(b, name)
        if mine != other:
            expected = f"the {name} of {left!r}, as one cast has both: {_text(mine)}"
            raise invalid_argument(operation, right, expected, _text(other))


class Words(NamedTuple):
    """The words of a text on a format; "" for those that it leaves out."""

    dtype: str
    granularity: str
    rule: str


def words_of(operation: str, text: object, argument: str = "format") -> Words:
    """Raises InvalidArgumentError that names the first word that is wrong."""
    if not isinstance(text, str):
        raise invalid_argument(operation, argument, "a Format or a text", repr(text))
    dtype, granularity, rule = "", "", ""
    for word in text.split():
        if SPELLINGS.get(word) in FP8 and not dtype:
            dtype = word
        elif word in GRANULARITIES and not granularity:
            granularity = word
        elif word in _RULES and not rule:
            rule = word
        else:
            raise _wrong_word(operation, argument, word)
    return Words(dtype, granularity, rule)


def _wrong_word(operation: str, argument: str, word: str) -> InvalidArgumentError:
    kinds = ("dtypes", FP8), ("granularities", GRANULARITIES), ("rules", tuple(_RULES))
    lists = "; ".join(f"{kind}: {', '.join(words)}" for kind, words in kinds)
    expected = f"at most one word of each kind ({lists})"
    return invalid_argument(operation, argument, expected, repr(word))


def _one_of(field: str, value: object, among: Iterable[str]) -> str:
    if isinstance(value, str) and value in among:
        return value
    raise invalid_argument("Format", field, f"one of {', '.join(among)}", repr(value))


def _text(value: object) -> str:
    return str(value) if isinstance(value, str) else repr(value)
