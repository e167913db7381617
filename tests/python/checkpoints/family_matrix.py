"""Tries which model loads from which family, with the libraries themselves: the table of
docs/checkpoints.md. `python -m tests.python.checkpoints.family_matrix` writes it there."""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import octofold
import torch
import transformers
from safetensors.torch import save_file
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from tests.python.checkpoints.matrix_models import DIFFUSION_ROWS, TEXT_ROWS, Row
from tests.python.judge import relative_error

COLUMNS = (
    ("deepseek-v3", "128x128"),
    ("finegrained-fp8", "128x128"),
    ("compressed-tensors", "channel"),
    ("compressed-tensors", "128x128"),
    ("torchao", "channel"),
    ("torchao", "128x128"),
)
ROWS = {row.name: row for row in (*TEXT_ROWS, *DIFFUSION_ROWS)}
CELLS = [(name, column) for name in ROWS for column in COLUMNS]

PAGE = Path(__file__).parents[3] / "docs" / "checkpoints.md"
BEGIN = "<!-- matrix: written by tests/python/checkpoints/family_matrix.py -->\n"
END = "<!-- /matrix -->\n"

# Outputs against those of the same values in the source's type. compressed-tensors casts the inputs
# of its layers, too; those without a limit give the same bits.
LIMITS = {"compressed-tensors": 0.15, "torchao": 0.05}


def save_dequantized(quantized, original, folder, dtype="bfloat16"):
    """The same checkpoint in the source's type, with the values that load_checkpoint() says."""
    checkpoint = octofold.load_checkpoint(quantized)
    tensors = {
        name: value.dequantize(dtype) if isinstance(value, octofold.ScaledTensor) else value
        for name, value in checkpoint.items()
    }
    return save_like(original, tensors, folder)


def save_like(original, tensors, folder):
    """A folder of one file, called as its library calls it, with the config of another."""
    folder.mkdir()
    diffuses = (original / "diffusion_pytorch_model.safetensors").exists()
    name = "diffusion_pytorch_model" if diffuses else "model"
    save_file(tensors, folder / f"{name}.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_bytes((original / "config.json").read_bytes())
    return folder


def quiet():
    """transformers' bars are not to be read here."""
    transformers.utils.logging.disable_progress_bar()


@dataclass(frozen=True)
class Source:
    """A model in high precision, saved by its own library, and what it gives."""

    row: Row
    model_class: Any
    folder: Path
    outputs: torch.Tensor

    def load(self, folder: Path) -> torch.nn.Module:
        """By the library's from_pretrained, which must find all that the model has and no more."""
        dtype = self.row.dtype if self.row in DIFFUSION_ROWS else "auto"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, found = self.model_class.from_pretrained(
                folder, torch_dtype=dtype, output_loading_info=True
            )
        assert not any(found.values()), found
        return model.eval()

    def load_as_on_a_gpu(self, folder: Path) -> torch.nn.Module:
        """The model that transformers makes with a GPU, unchecked: FP8 layers where it finds them,
        as a model of their numbers. Codes that it takes for weights are numbers here, too."""
        with patch.object(FineGrainedFP8HfQuantizer, "validate_environment", lambda *_, **__: None):
            state = self.load(folder).state_dict()
        scales = {key: state.pop(key) for key in list(state) if key.endswith("_scale_inv")}
        for name, value in state.items():
            if (scale := scales.get(f"{name}_scale_inv")) is not None:
                if scale.dim() == value.dim():
                    for dim in (-1, -2):
                        scale = scale.repeat_interleave(128, dim).narrow(dim, 0, value.shape[dim])
                state[name] = (value.float() * scale).to(self.row.dtype)
        model = self.load(self.folder)
        model.load_state_dict(state)
        return model


def make_source(row: Row, folder: Path) -> Source:
    torch.manual_seed(0)
    model = row.make().to(row.dtype).eval()
    model.save_pretrained(folder)
    source = Source(row, type(model), folder, torch.empty(0))
    return Source(row, type(model), folder, row.outputs(source.load(folder)))


def outputs_with_other_scales(source: Source, names: tuple[str, ...], folder: Path) -> torch.Tensor:
    """The outputs of the model whose quantized weights are three times what they should be."""
    checkpoint = octofold.load_checkpoint(source.folder)
    tensors = {key: 3 * value if key in names else value for key, value in checkpoint.items()}
    return source.row.outputs(source.load(save_like(source.folder, tensors, folder)))


def cell(source: Source, family: str, granularity: str, folder: Path, **options: Any) -> str:
    """The table's word for a model in a family, checked: what becomes of the model."""
    out = folder / "out"
    try:
        report = octofold.quantize_checkpoint(
            source.folder, out, family=family, format=granularity, **options
        )
    except octofold.InvalidArgumentError:
        assert not out.exists()
        return "refused"
    dtype = str(source.row.dtype).removeprefix("torch.")
    wide = save_dequantized(out, source.folder, folder / "wide", dtype)
    dequantized = source.row.outputs(source.load(wide))
    limit = LIMITS.get(family, 0)
    assert relative_error(dequantized, source.outputs) < 0.15
    by_blocks = family in ("deepseek-v3", "finegrained-fp8")
    for load in (source.load, *((source.load_as_on_a_gpu,) if by_blocks else ())):
        assert relative_error(source.row.outputs(load(out)), dequantized) <= limit, load
    wrong = outputs_with_other_scales(source, report.quantized, folder / "wrong")
    says = relative_error(wrong, source.outputs)
    assert says > max(0.075, 1.5 * limit), "outputs that say nothing"
    left = sum("name matches" not in reason for reason in report.left_alone.values())
    return f"loads, without {left} of {left + len(report.quantized)}" if left else "loads"


def table(cells: dict[tuple[str, tuple[str, str]], str]) -> str:
    heads = [f"`{family}` {granularity}" for family, granularity in COLUMNS]
    lines = ["| model | " + " | ".join(heads) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name in ROWS:
        lines.append(f"| {name} | " + " | ".join(cells[name, column] for column in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def documented() -> dict[tuple[str, tuple[str, str]], str]:
    """The cells of the table as it stands in the page."""
    lines = PAGE.read_text().split(BEGIN)[1].split(END)[0].splitlines()[2:]
    cells = {}
    for line in lines:
        name, *said = (text.strip() for text in line.strip("|").split("|"))
        cells.update({(name, column): text for column, text in zip(COLUMNS, said, strict=True)})
    return cells


def all_cells(folder: Path) -> Iterator[tuple[tuple[str, tuple[str, str]], str]]:
    sources = {name: make_source(row, folder / name) for name, row in ROWS.items()}
    for number, (name, column) in enumerate(CELLS):
        place = folder / str(number)
        place.mkdir()
        yield (name, column), cell(sources[name], *column, place)


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        cells = {}
        for key, said in all_cells(Path(folder)):
            print(*key, said, file=sys.stderr)
            cells[key] = said
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table(cells) + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
