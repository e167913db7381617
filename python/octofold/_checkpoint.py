"""FP8 checkpoints on disk."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ._core.errors import UnsupportedError, invalid_argument
from ._core.files import path_bytes
from ._core.formats import Format, FormatLike, format_of, words_of
from ._core.library import Progress, library, reporting
from ._core.records import record
from ._loaded_model import loaded_model


@dataclass(frozen=True)
class WeightChange:
    """The change that a cast from codes to other codes made to a weight."""

    changed: int
    """How many values are others now."""
    values: int
    """How many it has."""
    largest_error: float
    """The largest |new - old| / |old| of those that are numbers."""


@dataclass(frozen=True)
class CheckpointReport:
    """The report of quantize_checkpoint() or convert_checkpoint()."""

    quantized: tuple[str, ...]
    """Names of the weights in FP8."""
    copied: tuple[str, ...]
    """Names of all other tensors."""
    requantized: tuple[str, ...]
    """Names of those weights in FP8 that were cast anew, with an error of their own."""
    changes: Mapping[str, WeightChange]
    """The error of each of them. Weights in small formats that are not here kept every value."""
    not_finite: tuple[str, ...]
    """Names of those weights in FP8 that have codes or scales of NaN or infinity."""
    dropped: tuple[str, ...]
    """Tensors, and settings (`quantization_config.…`), that the family has no place for."""
    left_alone: Mapping[str, str]
    """Weights that could have been FP8 by their shape and type and are not, with the reason: a skip
    pattern, or what the family's libraries would not read right. By quantize_checkpoint() alone."""
    input_bytes: int
    """Tensor data read."""
    output_bytes: int
    """Tensor data written."""
    files: tuple[Path, ...]
    """The files that were written."""


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor of a checkpoint, as bytes in a file."""

    name: str
    dtype: str
    """The dtype's name in safetensors: "BF16", "F8_E4M3"."""
    shape: tuple[int, ...]
    file: Path
    offset: int
    """The position of the first byte, counted from the file's beginning."""
    bytes: int


@dataclass(frozen=True)
class CheckpointWeight:
    """A weight in FP8 or a small format: a matrix [N, K], or a stack of them [experts, N, K]."""

    name: str
    """The name of the layer's parameter: "model.layers.0.mlp.up_proj.weight"."""
    shape: tuple[int, ...]
    """The shape of its values; that of codes of four bits is another."""
    format: str
    """ "fp8", "mxfp4", "nvfp4" or "mxfp8"."""
    codes: CheckpointTensor
    scale: CheckpointTensor | None
    """None: the codes are the values."""
    second_scale: CheckpointTensor | None
    """The scale of a whole weight in nvfp4, which is multiplied with the others."""
    second_scale_divides: bool
    """The second scale is the inverse of a multiplier."""
    input_scale: CheckpointTensor | None
    granularity: str
    """A granularity as in quantize(); of small formats "1x32" or "1x16", which no product takes."""
    full_precision: bool
    """Whoever made the checkpoint asks that this layer multiply in high precision."""


@dataclass(frozen=True)
class CheckpointContents:
    """The result of inspect_checkpoint()."""

    family: str | None
    """None: nothing is quantized."""
    weights: tuple[CheckpointWeight, ...]
    """The weights in FP8 and small formats, by file, in the order of their data."""
    others: tuple[CheckpointTensor, ...]
    """All that is neither such a weight nor a part of one."""
    files: tuple[Path, ...]
    bytes: int
    """The bytes of all tensors together."""


def default_skip_patterns() -> tuple[str, ...]:
    """The patterns of what quantize_checkpoint() leaves as it is: embeddings, routers, output
    heads, and weights that models read past their layer (Mamba's `dt_proj`, T5's `wo`).
    """
    return tuple(map(str, library.default_skip_patterns()))


def checkpoint_families() -> tuple[str, ...]:
    """The names of all families: "deepseek-v3", "finegrained-fp8" (transformers'),
    "compressed-tensors", "modelopt", "torchao", "comfyui" (single files of diffusion models).
    """
    return tuple(map(str, library.checkpoint_families()))


def inspect_checkpoint(input: str | os.PathLike[str]) -> CheckpointContents:
    """Read the headers of a checkpoint: whose conventions it follows, which weights are FP8, MXFP4,
    NVFP4 or MXFP8, and where their codes and scales are.

    input: a `.safetensors` file, a `*.safetensors.index.json`, or a folder with either. config.json
        (or hf_quant_config.json) beside it names the family; without one, the names of the tensors
        tell.

    Raises BadFormatError for files that are not valid, for tensors that contradict their config or
    each other, and for scales that are missing or have no known shape; UnsupportedError for
    other quantizations, keys of a config that may change numbers and are not known, and
    folders that functions of Octofold's wrote and read; IoError.
    """
    contents = library.inspect_checkpoint(path_bytes("inspect_checkpoint", "input", input))
    return record(CheckpointContents, contents)


def inspect_fp8(operation: str, input: str | os.PathLike[str]) -> CheckpointContents:
    """inspect_checkpoint() for those who read FP8 alone. Raises UnsupportedError that names the
    operation and the first weight in a small format."""
    contents = inspect_checkpoint(input)
    for weight in contents.weights:
        if weight.format != "fp8":
            raise UnsupportedError(
                f"{operation}: {weight.codes.file}: weight '{weight.name}': expected FP8, got "
                f"{weight.format}: `octofold convert` (octofold.convert_checkpoint) makes FP8 of it"
            )
    return contents


def quantize_checkpoint(
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    format: FormatLike = "e4m3",
    *,
    family: str = "deepseek-v3",
    skip: str | Sequence[str] = (),
    use_default_skips: bool = True,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Rewrite a safetensors checkpoint with its linear weights in FP8.

    Each 2-D floating-point `*.weight` (of FP64 too) that no skip pattern matches becomes F8_E4M3
    with FP32 scales, named and shaped as the family has them, and so do fused 3-D experts in the
    family finegrained-fp8. Everything else is copied. A weight that the libraries of the family
    would read wrong stays as it is, logged and named in `left_alone`: matrices stored as [in, out]
    (transformers' Conv1D in GPT-2), experts stored so or with biases, and sizes that are no
    multiples of 128 where the family's scales are of whole blocks. Where transformers is installed
    and has the model's class, it says what it renames, which goes into the config, and what it has
    no FP8 layer for.

    input: a `.safetensors` file, a `*.safetensors.index.json` of a sharded checkpoint, or a folder
        with either.
    output: a path of the same kind, which must not exist yet (an empty folder may). With an index
        or a folder, everything that lies beside the weights (tokenizer, generation config), in
        folders below too, comes along, except caches and weights in other formats, which are
        logged; config.json gets a `quantization_config`. The output appears whole or not at all.
    format: how weights are cast, a Format or its words: of e4m3, saturating, with a granularity
        that the family has. A text that names none, such as "torchao", leaves that to the family,
        whose first is taken.
    family: one of checkpoint_families().
    skip: a glob pattern (`*`, `?`, `[...]`), or several: tensors whose names match are copied,
        beside those of default_skip_patterns() unless use_default_skips is false.
    progress: called now and then with the bytes of input read so far and in all. An exception that
        it raises ends the run and is raised here.

    Memory use does not grow with the checkpoint. Weights with NaN or infinity are logged and
    reported.
    Raises BadFormatError for a file that is not valid safetensors, IoError where the system refuses
    (a missing file is a FileNotFoundError too), InvalidArgumentError for wrong paths and patterns,
    for a checkpoint that is FP8 already, where no weight would be quantized, for a pipeline of
    Diffusers, for adapters, and for models that the libraries of the family would not load (it says
    which would).
    """
    rule, granularity, power_of_two = _cast_of(format)
    with reporting(progress) as report_progress:
        report = library.quantize_checkpoint(
            path_bytes("quantize_checkpoint", "input", input),
            path_bytes("quantize_checkpoint", "output", output),
            _patterns(skip),
            use_default_skips,
            family,
            granularity,
            rule,
            power_of_two,
            *_loaded("quantize_checkpoint", input, family),
            report_progress,
        )
    return record(CheckpointReport, report)


def convert_checkpoint(
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    family: str,
    *,
    granularity: str | None = None,
    progress: Progress | None = None,
) -> CheckpointReport:
    """Rewrite a checkpoint in FP8, MXFP4, NVFP4 or MXFP8 as FP8 in the layout of another family.

    input, output, progress, errors: as in quantize_checkpoint().
    family: one of checkpoint_families().
    granularity: that of the weights; None: of those in FP8 their own where the family has it, else
        one that can repeat their scales, else the family's first; of small formats the first of
        128x128, channel, 1x128 and tensor that the family has and by which all values stay what
        they are, else the one by which most do.

    Codes stay what they are, and scales become FP32 in the family's shapes, wherever these can say
    the same. Other weights are cast anew from their values, logged and reported. Those in small
    formats get scales of powers of two, times their second scale, by which most values stay exactly
    what they are; `changes` says of each weight how many do not. Such weights are read once more
    for each granularity that is tried. Scales of inputs and other tensors for which the family has
    no place are dropped, logged and reported. So are scales that are NaN, infinite, negative or
    zero; BadFormatError where all of a weight, of inputs or of caches are, or where values in small
    formats are NaN or infinite.
    """
    with reporting(progress) as report_progress:
        report = library.convert_checkpoint(
            path_bytes("convert_checkpoint", "input", input),
            path_bytes("convert_checkpoint", "output", output),
            family,
            granularity,
            *_loaded("convert_checkpoint", input, family),
            report_progress,
        )
    return record(CheckpointReport, report)


def _loaded(
    operation: str, input: str | os.PathLike[str], family: str
) -> tuple[dict[str, str], dict[str, str]]:
    def names() -> list[str]:
        contents = inspect_checkpoint(input)
        return [one.name for part in (contents.weights, contents.others) for one in part]

    return loaded_model(operation, Path(input), family, names)


def _cast_of(format: FormatLike) -> tuple[str, str | None, bool | None]:
    """The rule of the format of weights, its granularity (None: the family's) and power_of_two."""
    operation = "quantize_checkpoint"
    value = format_of(operation, format)
    for field, expected in (("dtype", "e4m3"), ("overflow", "saturate")):
        got = getattr(value, field)
        if got != expected:
            raise invalid_argument(operation, f"format.{field}", f"{expected}, as files have", got)
    named = isinstance(format, Format) or words_of(operation, format).granularity != ""
    return value.rule.value, value.granularity if named else None, value.power_of_two


def _patterns(skip: object) -> list[str]:
    if isinstance(skip, str):
        return [skip]
    if not isinstance(skip, Sequence) or not all(isinstance(item, str) for item in skip):
        raise invalid_argument(
            "quantize_checkpoint", "skip", "a pattern or a sequence of patterns (str)", repr(skip)
        )
    return list(skip)
