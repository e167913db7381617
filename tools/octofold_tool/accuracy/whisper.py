"""Whisper's weights, out of CTranslate2's model.bin and by the names of transformers."""

import re
from typing import Any, BinaryIO, Final

import numpy as np

# A part of a layer there, and what lies in it here, one behind the other along its rows.
PARTS: Final = {
    "embeddings": ("embed_tokens",),
    "position_encodings": ("embed_positions",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
KINDS: Final = {"gamma": "weight", "beta": "bias", "encodings": "weight"}
DTYPES: Final = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}


def parameters(file: BinaryIO) -> dict[str, Any]:
    """NumPy arrays by the names of WhisperForConditionalGeneration's parameters.

    The file, version 6, has little-endian numbers and texts: a length in 2 bytes, which counts the
    zero at the end. First come the version (4 bytes), the model's kind (a text), that one's
    revision (4) and the number of arrays (4). Each has a name, how many sizes it has (1), these
    (4 each), a dtype (1), how many bytes it has (4), and these."""

    def number(size: int) -> int:
        return int.from_bytes(file.read(size), "little")

    def text() -> str:
        return file.read(number(2))[:-1].decode()

    assert (number(4), text(), number(4)) == (6, "WhisperSpec", 3), "another model.bin"
    found = {}
    for _ in range(number(4)):
        name, shape = text(), [number(4) for _ in range(number(1))]
        dtype = DTYPES[number(1)]
        array = np.frombuffer(file.read(number(4)), dtype).reshape(shape)
        match = re.fullmatch(r"(encoder|decoder)/(?:layer_(\d+)/)?(.+)/(\w+)", name)
        if match is None:
            continue  # a setting
        side, layer, part, kind = match.groups()
        layer = f"layers.{layer}." if layer else ""
        here = PARTS.get(part, (part,))
        for module, rows in zip(here, np.split(array, len(here)), strict=True):
            found[f"model.{side}.{layer}{module}.{KINDS.get(kind, kind)}"] = rows
    found["proj_out.weight"] = found["model.decoder.embed_tokens.weight"]
    # Keys have no bias: there are zeros for it in the file.
    return {name: array for name, array in found.items() if not name.endswith("k_proj.bias")}
