"""Tiny random models of transformers and Diffusers, a row each of the families' matrix."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

VOCABULARY = 96
TOKENS = (torch.arange(24).reshape(2, 12) * 7) % VOCABULARY


@dataclass(frozen=True)
class Row:
    """A model of the matrix."""

    name: str
    make: Callable[[], torch.nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    dtype: torch.dtype = torch.bfloat16
    number: int = 0
    """The index of the output that is looked at."""

    def outputs(self, model: torch.nn.Module) -> torch.Tensor:
        """An output, as FP32."""
        with torch.no_grad():
            result = model(**self.inputs())
        results = result.to_tuple() if hasattr(result, "to_tuple") else result
        return results[self.number].float()


def tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": TOKENS}


def pairs() -> dict[str, torch.Tensor]:
    return {"input_ids": TOKENS, "decoder_input_ids": TOKENS.flip(1)}


def images() -> dict[str, torch.Tensor]:
    pixels = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
    return {"pixel_values": pixels.to(torch.bfloat16)}


def seen() -> dict[str, torch.Tensor]:
    """An image of sixteen tokens before text."""
    ids = torch.cat((torch.full((1, 16), 95), TOKENS[:1] % 90), 1)
    return {"input_ids": ids, **images()}


def patches() -> dict[str, torch.Tensor]:
    """The same for Qwen2-VL, whose images come as patches, four to a token."""
    ids, grid = seen()["input_ids"], torch.tensor([[1, 8, 8]])
    kinds = {"image_grid_thw": grid, "mm_token_type_ids": (ids == 95).int()}
    return {"input_ids": ids, "pixel_values": values(64, 384), **kinds}


def sounds() -> dict[str, torch.Tensor]:
    features = torch.linspace(-1, 1, 16 * 40).reshape(1, 16, 40).to(torch.bfloat16)
    return {"input_features": features, "decoder_input_ids": TOKENS[:1]}


SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
VISION = {key: SIZES[key] for key in (*SIZES,)[:4]} | {"image_size": 32, "patch_size": 8}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 64}
TEXT_PAIR = {
    "d_model": 128,
    "vocab_size": VOCABULARY,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}


def of(architecture: str, **options: Any) -> Callable[[], torch.nn.Module]:
    """Makes a model of transformers by the name of its class."""

    def make() -> torch.nn.Module:
        model_class = getattr(transformers, architecture)
        return model_class(model_class.config_class(**options))

    return make


MROPE = {"rope_type": "default", "mrope_section": [8, 12, 12]}
EXPERTS = {"moe_intermediate_size": 256, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
GPT = {
    "n_embd": 128,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": VOCABULARY,
    "n_positions": 64,
    **ENDS,
}
DEEPSEEK = {
    **SIZES,
    **EXPERTS,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
}

LLAMA = of("LlamaForCausalLM", **DECODER)
TEXT_ROWS = [
    Row("Llama", LLAMA, tokens),
    Row("Qwen3", of("Qwen3ForCausalLM", **DECODER, tie_word_embeddings=True), tokens),
    Row("Qwen3-MoE", of("Qwen3MoeForCausalLM", **DECODER, **EXPERTS, num_experts=4), tokens),
    Row("Mixtral", of("MixtralForCausalLM", **DECODER, **LOCAL_EXPERTS), tokens),
    Row(
        "Granite MoE",
        of("GraniteMoeForCausalLM", **SIZES, **LOCAL_EXPERTS, num_key_value_heads=2),
        tokens,
    ),
    Row("DeepSeek-V3", of("DeepseekV3ForCausalLM", **DEEPSEEK), tokens),
    Row(
        "gpt-oss",
        of("GptOssForCausalLM", **DECODER, **LOCAL_EXPERTS, layer_types=["full_attention"]),
        tokens,
    ),
    Row("Gemma 3", of("Gemma3ForCausalLM", **DECODER), tokens),
    Row(
        "Phi-3",
        of("Phi3ForCausalLM", **SIZES, **ENDS, num_key_value_heads=2, pad_token_id=0),
        tokens,
    ),
    Row("GPT-2", of("GPT2LMHeadModel", **GPT), tokens),
    Row("GPT-J", of("GPTJForCausalLM", **GPT, rotary_dim=32), tokens),
    Row("BERT", of("BertForMaskedLM", **SIZES), tokens, torch.float32),
    Row("RoBERTa", of("RobertaForMaskedLM", **SIZES), tokens),
    Row(
        "ModernBERT",
        of("ModernBertForMaskedLM", **SIZES, **ENDS, pad_token_id=0, cls_token_id=1,
           sep_token_id=2),
        tokens,
    ),
    Row("BART", of("BartForConditionalGeneration", **TEXT_PAIR), pairs),
    Row(
        "T5",
        of("T5ForConditionalGeneration", d_model=128, d_ff=256, d_kv=64, num_heads=2,
           num_layers=1, vocab_size=VOCABULARY, decoder_start_token_id=0, pad_token_id=0,
           eos_token_id=1, is_gated_act=True, feed_forward_proj="gated-gelu"),
        pairs,
    ),
    Row(
        "Marian",
        of("MarianMTModel", **{**TEXT_PAIR, "decoder_start_token_id": 0}),
        pairs,
        torch.float16,
    ),
    Row(
        "Whisper",
        of("WhisperForConditionalGeneration",
           **{key: value for key, value in TEXT_PAIR.items() if key != "max_position_embeddings"},
           num_mel_bins=16, max_source_positions=20, max_target_positions=64,
           suppress_tokens=None, begin_suppress_tokens=None),
        sounds,
    ),
    Row("ViT", of("ViTForImageClassification", **VISION), images),
    Row("DINOv2", of("Dinov2Model", **VISION, mlp_ratio=2), images),
    Row("DINOv3", of("DINOv3ViTModel", **VISION), images),
    Row("SigLIP", of("SiglipVisionModel", **VISION), images, number=1),
    Row(
        "Qwen2-VL",
        of("Qwen2VLForConditionalGeneration",
           text_config={**SIZES, "num_key_value_heads": 2, "rope_parameters": MROPE},
           vision_config={"depth": 1, "embed_dim": 128, "hidden_size": 128, "num_heads": 2,
                          "mlp_ratio": 2, "patch_size": 8}, image_token_id=95),
        patches,
    ),
    Row(
        "LLaVA",
        of("LlavaForConditionalGeneration", text_config={"model_type": "llama", **DECODER},
           vision_config={"model_type": "clip_vision_model", **VISION, "num_hidden_layers": 2},
           image_token_index=95),
        seen,
    ),
    Row(
        "Gemma 3 with images",
        of("Gemma3ForConditionalGeneration",
           text_config={**DECODER, "layer_types": ["full_attention"]},
           vision_config={**VISION, "vision_use_head": True}, mm_tokens_per_image=16,
           image_token_id=95),
        seen,
    ),
    Row(
        "Falcon",
        of("FalconForCausalLM", hidden_size=128, num_hidden_layers=1,
           num_attention_heads=2, vocab_size=VOCABULARY),
        tokens,
    ),
    Row("NomicBERT", of("NomicBertModel", **SIZES), tokens),
    Row(
        "Llama 4",
        of("Llama4ForCausalLM", **DECODER, intermediate_size_mlp=256,
           num_local_experts=2, num_experts_per_tok=1, pad_token_id=0),
        tokens,
    ),
    Row(
        "Mamba",
        of("MambaForCausalLM", hidden_size=128, num_hidden_layers=1,
           vocab_size=VOCABULARY, state_size=8, time_step_rank=8, pad_token_id=0, bos_token_id=0,
           eos_token_id=0),
        tokens,
    ),
]  # fmt: skip


def diffusion(architecture: str, **options: Any) -> Callable[[], torch.nn.Module]:
    """Makes a model of Diffusers by the name of its class."""

    def make() -> torch.nn.Module:
        import diffusers

        return getattr(diffusers, architecture)(**options)

    return make


def values(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).to(torch.bfloat16)


DIFFUSION_ROWS = [
    Row(
        "UNet",
        diffusion("UNet2DConditionModel", block_out_channels=(32, 64), layers_per_block=1,
                  down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                  up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=64,
                  attention_head_dim=8, norm_num_groups=8, sample_size=8),
        lambda: {"sample": values(1, 4, 8, 8), "timestep": torch.tensor([5]),
                 "encoder_hidden_states": values(1, 6, 64)},
    ),
    Row(
        "Flux",
        diffusion("FluxTransformer2DModel", in_channels=16, num_layers=1, num_single_layers=1,
                  attention_head_dim=32, num_attention_heads=4, joint_attention_dim=128,
                  pooled_projection_dim=64, axes_dims_rope=(8, 8, 16)),
        lambda: {"hidden_states": values(1, 16, 16), "encoder_hidden_states": values(1, 6, 128),
                 "pooled_projections": values(1, 64), "timestep": torch.tensor([0.5]).bfloat16(),
                 "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3)},
    ),
    Row(
        "SD3",
        diffusion("SD3Transformer2DModel", sample_size=8, patch_size=2, in_channels=4,
                  num_layers=1, attention_head_dim=32, num_attention_heads=4,
                  joint_attention_dim=128, caption_projection_dim=128, pooled_projection_dim=64,
                  out_channels=4, pos_embed_max_size=8),
        lambda: {"hidden_states": values(1, 4, 8, 8), "encoder_hidden_states": values(1, 6, 128),
                 "pooled_projections": values(1, 64), "timestep": torch.tensor([5])},
    ),
    Row(
        "Wan",
        diffusion("WanTransformer3DModel", patch_size=(1, 2, 2), num_attention_heads=4,
                  attention_head_dim=32, in_channels=4, out_channels=4, text_dim=128,
                  freq_dim=32, ffn_dim=256, num_layers=1, rope_max_seq_len=32),
        lambda: {"hidden_states": values(1, 4, 1, 8, 8), "timestep": torch.tensor([5]),
                 "encoder_hidden_states": values(1, 6, 128)},
    ),
]  # fmt: skip
