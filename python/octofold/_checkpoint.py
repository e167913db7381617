"""FP8 checkpoints on disk."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ._library import library
from ._progress import Progress, reporting
from .errors import invalid_argument


@dataclass(frozen=True)
class CheckpointReport:
    """What quantize_checkpoint did."""

    quantized: tuple[str, ...]
    """Names of the weights that are FP8 now."""
    copied: tuple[str, ...]
    """Names of all other tensors."""
    input_bytes: int
    """Tensor data read."""
    output_bytes: int
    """Tensor data written."""
    files: tuple[Path, ...]
    """What was written."""


def default_skip_patterns() -> tuple[str, ...]:
    """Embeddings, routers and output heads: what quantize_checkpoint leaves as it is."""
    return tuple(map(str, library.default_skip_patterns()))


def quantize_checkpoint(
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    skip: str | Sequence[str] = (),
    use_default_skips: bool = True,
    profile: str = "deepgemm",
    power_of_two: bool | None = None,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Rewrite a safetensors checkpoint with its linear weights in DeepSeek-V3's FP8 layout.

    Each 2-D floating-point `*.weight` that no skip pattern matches becomes F8_E4M3 with an F32
    `*.weight_scale_inv` [ceil(N/128), ceil(K/128)] (the multiplier); all else is copied.

    input: a `.safetensors` file, or the `*.safetensors.index.json` of a sharded checkpoint.
    output: a path of the same kind, which must not exist yet. It appears whole or not at all.
    skip: a glob pattern (`*`, `?`, `[...]`), or several, on tensor names to copy, beside
        default_skip_patterns() unless use_default_skips is false.
    profile, power_of_two: as in quantize().
    progress: called now and then with bytes of input read so far and in all. What it raises ends
        the run and is raised here.

    Memory use does not grow with the file.
    Raises BadFormatError for a file that is not valid safetensors, IoError for what the system
    refuses (a missing file is a FileNotFoundError too), InvalidArgumentError for paths and
    patterns.
    """
    with reporting(progress) as report_progress:
        report = library.quantize_checkpoint(
            os.fspath(input),
            os.fspath(output),
            _patterns(skip),
            use_default_skips,
            profile,
            power_of_two,
            report_progress,
        )
    return CheckpointReport(
        quantized=tuple(map(str, report["quantized"])),
        copied=tuple(map(str, report["copied"])),
        input_bytes=report["input_bytes"],
        output_bytes=report["output_bytes"],
        files=tuple(map(Path, report["files"])),
    )


def _patterns(skip: object) -> list[str]:
    if isinstance(skip, str):
        return [skip]
    if not isinstance(skip, Sequence) or not all(isinstance(item, str) for item in skip):
        raise invalid_argument(
            "quantize_checkpoint", "skip", "a pattern or a sequence of patterns (str)", repr(skip)
        )
    return list(skip)
