"""The report of a conversion: layer by layer, with reasons."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from torch.nn import Module

_NAMED_AT_MOST: Final = 3
_WHAT: Final = "the report of a conversion, which changed the model in place (.model is it)"


@dataclass(frozen=True, repr=False)
class Conversion:
    """The report of octofold.nn.convert(), convert_weight_only() and convert_experts(). As text it
    counts what became of the layers, with some of their names.

    model: the model, changed in place; for a layer that was given alone, the new one.
    converted: by the layer's name, what it is now.
    left_alone: by the layer's name, why it is as it was.
    """

    model: Module
    converted: Mapping[str, str]
    left_alone: Mapping[str, str]

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"this is {_WHAT}, not a module: call the model")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"'Conversion' object has no attribute {name!r}: it is {_WHAT}")

    def __repr__(self) -> str:
        lines = [
            f"{type(self.model).__qualname__}: {len(self.converted)} converted, "
            f"{len(self.left_alone)} left alone"
        ]
        lines += [f"  converted: {line}" for line in grouped(self.converted)]
        lines += [f"  left alone: {line}" for line in grouped(self.left_alone)]
        return "\n".join(lines)


def grouped(layers: Mapping[str, str]) -> Iterator[str]:
    """Names of layers by what is said of them: a line for each text, the commonest first."""
    names: dict[str, list[str]] = {}
    for name, text in layers.items():
        names.setdefault(text, []).append(name or "the layer itself")
    for text, some in sorted(names.items(), key=lambda entry: -len(entry[1])):
        more = len(some) - _NAMED_AT_MOST
        listed = ", ".join(some[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
        yield f"{len(some)}, {text}: {listed}"
