"""The table of operations.

A row says what an operation reads, what it writes and how the library is called. From that follow
the allocation of results, the call with arrays of any framework, the torch op with its schema, and
the error message where the call fails. The rows stand below the public functions whose parameter
lists they take. They are written as Op (calls.py), a row that can be called.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, get_args

import numpy as np

from .errors import Error, invalid_argument
from .formats import UNITS, DTypeLike
from .frameworks import ANY, Array, Framework, StreamLike
from .library import library

Arrays: TypeAlias = tuple[Any, ...]
"""Arrays, None where one is left out."""

Options: TypeAlias = tuple[Any, ...]
"""Texts, truth values, numbers, None."""

TABLE: Final[dict[str, "Row"]] = {}

# Frameworks raise these errors for an array that they cannot export.
EXPORT_ERRORS: Final = (BufferError, RuntimeError, TypeError, ValueError)


class Scaled:
    """The form of a ScaledTensor as an op takes it: two inputs and an option."""

    data: Array
    scale: Array
    granularity: str


class Option:
    """A type of options: its name in torch's schemas, what it takes, and that in words."""

    def __init__(self, schema: str, types: tuple[type, ...], words: str) -> None:
        self.schema, self.types, self.words = schema, types, words


_OPTIONS: Final[dict[Any, Option]] = {
    str: Option("str", (str,), "text"),
    str | None: Option("str?", (str, type(None)), "text or None"),
    bool: Option("bool", (bool,), "True or False"),
    bool | None: Option("bool?", (bool, type(None)), "True, False or None"),
    float: Option("float", (float, int), "a number"),
    int: Option("int", (int,), "a whole number"),
    int | None: Option("int?", (int, type(None)), "a whole number or None"),
}

# Parameters that are no business of the library, by type and by name.
_OWN_TYPES: Final = (DTypeLike, DTypeLike | None, StreamLike | None)
_OWN_NAMES: Final = ("out", "return")


class Row:
    """A row of the table.

    name: of the operation in messages, and of its torch op.
    parameters: names and types, as in the annotations of a public function. Arrays become inputs, a
        scaled tensor two and its granularity (scale and granularity are None where an array comes
        for it, if it may); texts, truth values and numbers become options; the dtype of results,
        the stream and `out` are no business of the library. Raises TypeError for a parameter of any
        other type: dropped, the library would never see it.
    results: names of what is written. What ends in "?" may be left out; "workspace" is memory that
        the library works in.
    allocate: (framework, inputs, options, dtype) → new results.
    function: gives the library's function, as it is first needed: (*inputs, *results, *options,
        stream). None: the one of this name.
    in_place: the input that may be the first result itself.
    """

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any],
        results: Sequence[str],
        allocate: Callable[[Framework, Arrays, Options, str], Arrays],
        function: Callable[[], Callable[..., None]] | None = None,
        in_place: str | None = None,
    ) -> None:
        self.name, self.allocate = name, allocate
        self._load = function or (lambda: getattr(library, name))
        self.inputs: list[str] = []
        self.options: dict[str, Option] = {}
        for parameter, kind in parameters.items():
            if parameter in _OWN_NAMES or kind in _OWN_TYPES:
                continue
            if _is_scaled(kind):
                self.inputs += [parameter, f"{parameter}.scale"]
                self.options[f"{parameter}.granularity"] = _OPTIONS[str]
            elif _is_array_or_scaled(kind):
                self.inputs += [parameter, f"{parameter}.scale?"]
                self.options[f"{parameter}.granularity"] = _OPTIONS[str | None]
            elif kind == Array:
                self.inputs.append(parameter)
            elif kind == Array | None:
                self.inputs.append(parameter + "?")
            elif kind in _OPTIONS:
                self.options[parameter] = _OPTIONS[kind]
            else:
                raise TypeError(f"{name}: no op takes a parameter {parameter!r} of type {kind!r}")
        self.results = list(results)
        self.returned = [i for i, result in enumerate(results) if not _is_workspace(result)]
        self.in_place = None if in_place is None else self.inputs.index(in_place + "?")
        TABLE[name] = self

    def __getattr__(self, name: str) -> Any:
        """Loads `function`, the library's, with the first call. Without a lock, which Python 3.11's
        cached_property has: a fork amid another thread's first call would leave it locked."""
        if name != "function":
            raise AttributeError(name)
        self.__dict__["function"] = function = self._load()
        return function

    def launch(
        self,
        framework: Framework,
        inputs: Arrays,
        options: Options,
        dtype: str,
        out: Arrays | None,
    ) -> Arrays:
        """Calls the library, at once."""
        try:
            if framework.library_takes_arrays:
                results = out or self.allocate(framework, inputs, options, dtype)
                self.function(*inputs, *results, *options, framework.stream)
            else:
                read = self._export(framework, inputs, self.inputs, False)
                results = out or self.allocate(framework, read, options, dtype)
                written = self._export(framework, results, self.results, True)
                self.function(*read, *written, *options, framework.stream)
        except Error:
            raise
        except EXPORT_ERRORS as error:
            return self._again_or_fail(error, framework, inputs, options, dtype, out)
        if out is None:
            takes_them = framework.library_takes_arrays  # then they are the caller's kind
            return results if takes_them else tuple(map(framework.deliver, results))
        for array in out:
            if array is not None:
                framework.mark_written(array)
        return out

    def names(self) -> list[str]:
        """The names of inputs and results, as messages have them."""
        return [name.removesuffix("?") for name in (*self.inputs, *self.results)]

    def schema(self) -> str:
        """The schema of the torch op: inputs, options, and the dtype of the results it returns."""
        parameters = [_parameter(name, "Tensor") for name in self.inputs]
        parameters += [_parameter(name, kind.schema) for name, kind in self.options.items()]
        results = ", ".join(["Tensor"] * len(self.returned))
        return f"{self.name}({', '.join(parameters)}, str result_dtype) -> ({results})"

    def schema_of_out(self) -> str:
        """The schema of its overload that writes: the inputs, the results, the options."""
        parameters = [_parameter(name, "Tensor") for name in self.inputs]
        parameters += [
            _parameter(name, f"Tensor(r{index}!)") for index, name in enumerate(self.results)
        ]
        parameters += [_parameter(name, kind.schema) for name, kind in self.options.items()]
        if self.in_place is not None:
            parameters.append("bool in_place")
        return f"{self.name}.out({', '.join(parameters)}) -> ()"

    def _export(
        self, framework: Framework, arrays: Arrays, names: Sequence[str], writable: bool
    ) -> Arrays:
        return tuple(
            exported(self.name, name.removesuffix("?"), framework, array, writable)
            for name, array in zip(names, arrays, strict=True)
        )

    def _again_or_fail(
        self,
        error: Exception,
        framework: Framework,
        inputs: Arrays,
        options: Options,
        dtype: str,
        out: Arrays | None,
    ) -> Arrays:
        """After tvm-ffi has refused what it was given: NumPy's scalars are taken as Python's, all
        else is named."""
        names = self.inputs if out is None else self.inputs + self.results
        for name, array in zip(names, inputs + (out or ()), strict=True):
            if array is None and not name.endswith("?"):
                raise invalid_argument(self.name, name, ANY, "None") from error
        plain = self.checked_options(options)
        if any(new is not old for new, old in zip(plain, options, strict=True)):
            return self.launch(framework, inputs, plain, dtype, out)
        self._export(framework, inputs, self.inputs, False)
        if out is not None:
            self._export(framework, out, self.results, True)
        raise error

    def checked_options(self, options: Options) -> Options:
        """The options, whose types have to be those of the row; NumPy's scalars become Python's."""
        plain = tuple(
            value.item() if isinstance(value, np.bool_ | np.number) else value for value in options
        )
        for (name, option), value in zip(self.options.items(), plain, strict=True):
            if not isinstance(value, option.types):
                raise invalid_argument(self.name, name, option.words, repr(value))
        return plain


def exported(
    operation: str, argument: str, framework: Framework, array: Array | None, writable: bool
) -> Any:
    """An array as the library takes it. Raises InvalidArgumentError for one that does not go."""
    try:
        return None if array is None else framework.export(array, writable)
    except Error:
        raise
    except EXPORT_ERRORS as error:
        expected = f"a {'writable ' if writable else ''}tensor that DLPack can export"
        reason, *_ = str(error).splitlines() or [type(error).__name__]  # torch adds stacks
        raise invalid_argument(operation, argument, expected, f"this: {reason}") from error


def _parameter(name: str, kind: str) -> str:
    """A parameter of a torch op's schema. Arrays whose name ends in "?" may be None."""
    return f"{kind}{'?' * name.endswith('?')} {name.removesuffix('?').replace('.', '_')}"


def _is_workspace(result: str) -> bool:
    return result.removesuffix("?").split(".")[-1] == "workspace"


def _is_scaled(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Scaled)


def _is_array_or_scaled(kind: Any) -> bool:
    choices = get_args(kind)
    return len(choices) == 2 and choices[0] == Array and _is_scaled(choices[1])


def scale_shape(granularity: str, *shape: int, matrices: int | None = None) -> tuple[int, ...]:
    """Shape of the scale tensor of codes [..., cols]; `rows` is the product of all sizes but cols.

    | granularity | shape                                |
    |-------------|--------------------------------------|
    | "tensor"    | [1]                                  |
    | "channel"   | [...]                                |
    | "1x128"     | [..., ceil(cols / 128)]              |
    | "128x128"   | [ceil(rows / 128), ceil(cols / 128)] |

    matrices: of a stack of so many, one below another: [matrices] of "tensor", [matrices,
        ceil(rows / matrices / 128), ceil(cols / 128)] of "128x128".
    Raises InvalidArgumentError.
    """
    require_matrix("scale_shape", "shape", shape)
    require_stack("scale_shape", shape, matrices)
    try:
        library.scale_shape(granularity, row_count(shape), shape[-1])
    except TypeError as error:
        got = f"{granularity!r} and {shape}"
        raise invalid_argument(
            "scale_shape", "granularity, *shape", "text and whole numbers", got
        ) from error
    return quick_scale_shape(granularity, shape, matrices)


def quick_scale_shape(
    granularity: str, shape: Sequence[int], matrices: int | None = None
) -> tuple[int, ...]:
    """scale_shape() of what is sound: for torch's symbolic sizes too."""
    unit = UNITS.get(granularity)
    if unit is None:
        library.scale_shape(granularity, 0, 0)  # raises the error that lists them
        raise AssertionError(granularity)
    unit_rows, unit_cols = unit
    *leading, cols = shape
    blocks = () if unit_cols is None else (ceil_divide(cols, unit_cols),)
    if unit_rows == 1:
        return (*leading, *blocks)
    if unit_rows is None:
        return (1 if matrices is None else matrices,)
    if matrices is None:
        return (ceil_divide(row_count(shape), unit_rows), *blocks)
    return (matrices, ceil_divide(row_count(shape) // matrices, unit_rows), *blocks)


def ceil_divide(count: int, unit: int) -> int:
    """How many units hold `count`; for torch's symbolic sizes too."""
    return (count + unit - 1) // unit


def row_count(shape: Sequence[int]) -> int:
    """All sizes but the last, multiplied."""
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows


def require_matrix(operation: str, argument: str, shape: Sequence[int]) -> None:
    """At least two dimensions: leading ones are more rows."""
    if len(shape) < 2:
        raise invalid_argument(
            operation, argument, "a matrix (2 dimensions, or more before them)", f"{len(shape)}"
        )


def require_stack(operation: str, shape: Sequence[int], matrices: int | None) -> None:
    """Rows of [..., cols] that are those of so many matrices, if any number is given."""
    if matrices is not None and (matrices < 1 or row_count(shape) % matrices != 0):
        expected = f"a number from 1 on that divides {row_count(shape)} rows"
        raise invalid_argument(operation, "matrices", expected, repr(matrices))
