"""Which model loads from which family, tried with the libraries themselves: the table of
docs/checkpoints.md. `python tests/python/checkpoints/family_matrix.py` writes it there."""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import octofold
import torch
from checkpoint_support import relative_error
from matrix_models import DIFFUSION_ROWS, TEXT_ROWS, Row
from model_support import save_dequantized, save_like

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
# of its layers, too.
LIMITS = {"compressed-tensors": 0.15}
LIMIT = 0.05


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


def make_source(row: Row, folder: Path) -> Source:
    torch.manual_seed(0)
    model = row.make().to(row.dtype).eval()
    model.save_pretrained(folder)
    source = Source(row, type(model), folder, torch.empty(0))
    return Source(row, type(model), folder, row.outputs(source.load(folder)))


def outputs_with_other_scales(source: Source, names: tuple[str, ...], folder: Path) -> torch.Tensor:
    """Of the model whose quantized weights are three times what they should be."""
    checkpoint = octofold.load_checkpoint(source.folder)
    tensors = {key: 3 * value if key in names else value for key, value in checkpoint.items()}
    return source.row.outputs(source.load(save_like(source.folder, tensors, folder)))


def cell(source: Source, family: str, granularity: str, folder: Path) -> str:
    """What becomes of a model in a family, checked: what the table says."""
    out = folder / "out"
    try:
        report = octofold.quantize_checkpoint(source.folder, out, family=family, format=granularity)
    except octofold.InvalidArgumentError:
        assert not out.exists()
        return "refused"
    dtype = str(source.row.dtype).removeprefix("torch.")
    wide = save_dequantized(out, source.folder, folder / "wide", dtype)
    dequantized = source.row.outputs(source.load(wide))
    limit = LIMITS.get(family, LIMIT)
    assert relative_error(dequantized, source.outputs) < 0.15
    loaded = source.row.outputs(source.load(out))
    assert relative_error(loaded, dequantized) < limit
    wrong = outputs_with_other_scales(source, report.quantized, folder / "wrong")
    assert relative_error(wrong, source.outputs) > 1.5 * limit, "outputs that say nothing"
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
