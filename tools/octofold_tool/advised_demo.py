"""The advisor on the demo's model."""

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .advise import advise_shown, load_folder, write_plan
from .gpu.device import choose_device
from .minilm import model_folder

MAX_ERROR = 0.03
CPU_SENTENCES = 8
"""Enough to see what a layer does; each is run some forty times."""


def advise_demo(sentences: Sequence[str], folder: Path) -> tuple[str, dict[str, Any] | None]:
    """A plan for the model of transformers, on sentences in one batch, by its embeddings, whose
    files go to the folder: as text, and for demo.json; None where the advisor cannot be."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            return f"The advisor (octofold advise) needs {package}: pip install {package}.", None
    import torch

    device = choose_device("auto")
    on_gpu = device == "cuda"
    shown = sentences if on_gpu else sentences[:CPU_SENTENCES]
    dtype = "float16" if on_gpu else "float32"  # which every GPU multiplies
    bert, batch = load_folder(model_folder(), dtype, shown, device)
    bert.pooler = None  # it has no part in an embedding

    def embeddings(model: torch.nn.Module) -> torch.Tensor:
        states = model(**batch).last_hidden_state
        weights = batch["attention_mask"][..., None].to(states.dtype)
        return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)

    plan = advise_shown(bert, embeddings, max_error=MAX_ERROR)
    write_plan(plan, folder)
    from octofold.models.advisor.report import text_summary

    changed = {layer.name: layer.chosen for layer in plan.changed}
    document = {"max_error": MAX_ERROR, "changed": changed, **dataclasses.asdict(plan.whole)}
    return text_summary(plan).rstrip(), document
