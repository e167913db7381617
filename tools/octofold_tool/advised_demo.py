"""The advisor on the demo's model."""

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .advise import FILES, advise_shown, choose_device, write_plan
from .minilm import MiniLm, model_folder

MAX_ERROR = 0.03
CPU_SENTENCES = 8
"""Enough to see what a layer does; each is run some forty times."""


@dataclasses.dataclass(frozen=True)
class Advice:
    """The demo's report of the advisor's plan."""

    text: str
    document: dict[str, Any] | None
    """For demo.json; None where the advisor cannot be."""
    paths: Sequence[Path]
    """The files that were written."""


def advise_twin(model: MiniLm, sentences: Sequence[str], folder: Path) -> Advice:
    """A plan for the model in torch, on sentences in one batch; its files go to the folder."""
    if importlib.util.find_spec("torch") is None:
        text = "The advisor (octofold advise) needs PyTorch: pip install 'octofold[torch]'."
        return Advice(text, None, ())
    from .minilm_torch import TorchMiniLm, batch_of

    device = choose_device("auto")
    twin = TorchMiniLm(model_folder()).to(device)
    if device == "cuda":
        twin = twin.half()  # which every GPU multiplies
    shown = sentences if device == "cuda" else sentences[:CPU_SENTENCES]
    inputs = tuple(tensor.to(device) for tensor in batch_of(model, shown))
    plan = advise_shown(twin, inputs, max_error=MAX_ERROR)
    write_plan(plan, folder)
    whole = plan.whole
    text = (
        f"The advisor's plan (octofold advise), {100 * MAX_ERROR:.0f} % of error allowed: FP8 in "
        f"{len(plan.changed)} of {len(plan.layers)} linear layers,\n"
        f"  error {100 * whole.error:.1f} %, {whole.bytes_own / 1e6:.1f} → "
        f"{whole.bytes_planned / 1e6:.1f} MB"
    )
    if whole.seconds_own is not None and whole.seconds_planned is not None:
        text += f", {whole.seconds_own * 1e3:.3f} → {whole.seconds_planned * 1e3:.3f} ms"
        text += f" ({plan.timing})."
    else:
        text += "; times need a GPU."
    document = {
        "max_error": MAX_ERROR,
        "changed": {layer.name: layer.chosen for layer in plan.changed},
        **dataclasses.asdict(whole),
    }
    return Advice(text, document, tuple(folder / name for name in FILES))
