"""Tiny configurations and inputs of models of diffusers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Inputs = Callable[[], dict[str, Any]]


def _image(channels: int = 3, size: int = 16) -> torch.Tensor:
    return torch.randn(2, channels, size, size)


def _time() -> torch.Tensor:
    return torch.randint(0, 1000, (2,))


def _sample(channels: int = 3, size: int = 16) -> Inputs:
    return lambda: {"sample": _image(channels, size)}


def _timed(channels: int = 3, size: int = 16, **more: tuple[int, ...]) -> Inputs:
    def make() -> dict[str, Any]:
        extra = {k: torch.randn(*shape) for k, shape in more.items()}
        return {"sample": _image(channels, size), "timestep": _time(), **extra}

    return make


def _states(*shape: int, **more: tuple[int, ...]) -> Inputs:
    def make() -> dict[str, Any]:
        extra = {k: torch.randn(*s) for k, s in more.items()}
        return {"hidden_states": torch.randn(*shape), "timestep": _time(), **extra}

    return make


_UNET = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
_VAE = {
    "block_out_channels": (8, 16),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 4,
}
_CROSS = {
    **_UNET,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 12,
    "attention_head_dim": 4,
}
_SMALL = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}


def _dit() -> dict[str, Any]:
    labels = torch.randint(0, 10, (2,))
    return {"hidden_states": _image(4, 8), "timestep": _time(), "class_labels": labels}


def _pixart() -> dict[str, Any]:
    text = {"encoder_hidden_states": torch.randn(2, 5, 16), "timestep": _time()}
    conditions = {"resolution": None, "aspect_ratio": None}
    return {"hidden_states": _image(4, 8), "added_cond_kwargs": conditions, **text}


def _flux(pooled: bool = True) -> Inputs:
    def make() -> dict[str, Any]:
        ids = torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0))
        given = {
            "hidden_states": torch.randn(2, 16, 8),
            "encoder_hidden_states": torch.randn(2, 5, 16),
            "timestep": torch.rand(2),
            "img_ids": ids,
            "txt_ids": torch.zeros(5, 3),
        }
        if pooled:
            given["pooled_projections"] = torch.randn(2, 12)
        return given

    return make


def _prior() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(2, 8),
        "timestep": _time(),
        "proj_embedding": torch.randn(2, 8),
        "encoder_hidden_states": torch.randn(2, 7, 8),
    }


def _control() -> dict[str, Any]:
    given = _timed(4, 16, encoder_hidden_states=(2, 5, 12))()
    return {**given, "controlnet_cond": _image(3, 128)}


def _masked(*shape: int, text: int = 16) -> Inputs:
    def make() -> dict[str, Any]:
        return {
            "hidden_states": torch.randn(*shape),
            "encoder_hidden_states": torch.randn(2, 5, text),
            "timestep": _time(),
            "encoder_attention_mask": torch.ones(2, 5, dtype=torch.bool),
        }

    return make


def _ltx() -> dict[str, Any]:
    given = _masked(2, 2 * 4 * 4, 8)()
    return {**given, "num_frames": 2, "height": 4, "width": 4}


# name: (class, configuration, inputs)
MODELS: dict[str, tuple[str, dict[str, Any], Inputs]] = {
    "UNet2DModel": (
        "UNet2DModel",
        {
            **_UNET,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
            "dropout": 0.1,
        },
        _timed(),
    ),
    "UNet2DModel-resnet": (
        "UNet2DModel",
        {
            **_UNET,
            "down_block_types": ("ResnetDownsampleBlock2D",) * 2,
            "up_block_types": ("ResnetUpsampleBlock2D",) * 2,
            "attention_head_dim": 4,
            "resnet_time_scale_shift": "scale_shift",
        },
        _timed(),
    ),
    "UNet2DModel-skip": (
        "UNet2DModel",
        {
            **_UNET,
            "down_block_types": ("SkipDownBlock2D",) * 2,
            "up_block_types": ("SkipUpBlock2D",) * 2,
            "block_out_channels": (32, 32),
            "attention_head_dim": 4,
        },
        _timed(),
    ),
    "UNet2DConditionModel": (
        "UNet2DConditionModel",
        _CROSS,
        _timed(4, 16, encoder_hidden_states=(2, 5, 12)),
    ),
    "UNet2DConditionModel-linear": (
        "UNet2DConditionModel",
        {**_CROSS, "use_linear_projection": True, "dropout": 0.1, "act_fn": "gelu"},
        _timed(4, 16, encoder_hidden_states=(2, 5, 12)),
    ),
    "UNet3DConditionModel": (
        "UNet3DConditionModel",
        {
            **_UNET,
            "down_block_types": ("DownBlock3D", "CrossAttnDownBlock3D"),
            "up_block_types": ("CrossAttnUpBlock3D", "UpBlock3D"),
            "cross_attention_dim": 12,
            "attention_head_dim": 4,
        },
        lambda: {
            "sample": torch.randn(2, 4, 3, 8, 8),
            "timestep": _time(),
            "encoder_hidden_states": torch.randn(2, 5, 12),
        },
    ),
    "UNet1DModel": (
        "UNet1DModel",
        {"block_out_channels": (8, 8, 16), "sample_size": 64, "extra_in_channels": 16},
        lambda: {"sample": torch.randn(2, 2, 64), "timestep": torch.rand(2)},
    ),
    "ControlNetModel": (
        "ControlNetModel",
        {
            **_UNET,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "cross_attention_dim": 12,
            "attention_head_dim": 4,
            "conditioning_embedding_out_channels": (4, 8, 8, 8),
        },
        _control,
    ),
    "AutoencoderKL": ("AutoencoderKL", {**_VAE, "latent_channels": 4}, _sample()),
    "AsymmetricAutoencoderKL": (
        "AsymmetricAutoencoderKL",
        {
            "down_block_types": ("DownEncoderBlock2D",),
            "up_block_types": ("UpDecoderBlock2D",),
            "down_block_out_channels": (8,),
            "up_block_out_channels": (8,),
            "norm_num_groups": 4,
        },
        _sample(),
    ),
    "VQModel": (
        "VQModel",
        {**_VAE, "num_vq_embeddings": 16, "vq_embed_dim": 3},
        _sample(),
    ),
    "AutoencoderTiny": (
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        _sample(),
    ),
    "AutoencoderDC": (
        "AutoencoderDC",
        {
            "latent_channels": 4,
            "attention_head_dim": 4,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (8, 16),
            "decoder_block_out_channels": (8, 16),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
        },
        _sample(),
    ),
    "AutoencoderOobleck": (
        "AutoencoderOobleck",
        {
            "encoder_hidden_size": 8,
            "downsampling_ratios": [2, 4],
            "channel_multiples": [1, 2],
            "decoder_channels": 8,
            "decoder_input_channels": 4,
        },
        lambda: {"sample": torch.randn(2, 2, 64)},
    ),
    "AutoencoderKLWan": (
        "AutoencoderKLWan",
        {
            "base_dim": 4,
            "z_dim": 4,
            "dim_mult": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "latents_mean": [0.0] * 4,
            "latents_std": [1.0] * 4,
        },
        lambda: {"sample": torch.randn(1, 3, 5, 16, 16)},
    ),
    "T2IAdapter": (
        "T2IAdapter",
        {"channels": [8, 8, 16, 16], "num_res_blocks": 1},
        lambda: {"x": _image(3, 64)},
    ),
    "DiTTransformer2DModel": (
        "DiTTransformer2DModel",
        {**_SMALL, "sample_size": 8, "num_embeds_ada_norm": 10, "dropout": 0.1},
        _dit,
    ),
    "PixArtTransformer2DModel": (
        "PixArtTransformer2DModel",
        {
            **_SMALL,
            "sample_size": 8,
            "cross_attention_dim": 16,
            "caption_channels": 16,
            "use_additional_conditions": False,
        },
        _pixart,
    ),
    "Transformer2DModel": (
        "Transformer2DModel",
        {**_SMALL, "in_channels": 16, "norm_num_groups": 4, "cross_attention_dim": 12},
        lambda: {
            "hidden_states": _image(16, 8),
            "encoder_hidden_states": torch.randn(2, 5, 12),
        },
    ),
    "SD3Transformer2DModel": (
        "SD3Transformer2DModel",
        {
            **_SMALL,
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 12,
        },
        _states(2, 4, 8, 8, encoder_hidden_states=(2, 5, 16), pooled_projections=(2, 12)),
    ),
    "AuraFlowTransformer2DModel": (
        "AuraFlowTransformer2DModel",
        {
            "sample_size": 8,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pos_embed_max_size": 64,
        },
        _states(2, 4, 8, 8, encoder_hidden_states=(2, 5, 16)),
    ),
    "FluxTransformer2DModel": (
        "FluxTransformer2DModel",
        {
            "in_channels": 8,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "pooled_projection_dim": 12,
            "axes_dims_rope": (2, 2, 4),
        },
        _flux(),
    ),
    "ChromaTransformer2DModel": (
        "ChromaTransformer2DModel",
        {
            "in_channels": 8,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "axes_dims_rope": (2, 2, 4),
            "approximator_num_channels": 8,
            "approximator_hidden_dim": 16,
            "approximator_layers": 1,
        },
        _flux(pooled=False),
    ),
    "PriorTransformer": (
        "PriorTransformer",
        {**_SMALL, "attention_head_dim": 4, "embedding_dim": 8, "num_embeddings": 7},
        _prior,
    ),
    "SanaTransformer2DModel": (
        "SanaTransformer2DModel",
        {
            **_SMALL,
            "in_channels": 4,
            "out_channels": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": 16,
            "sample_size": 8,
        },
        _states(2, 4, 8, 8, encoder_hidden_states=(2, 5, 16)),
    ),
    "LTXVideoTransformer3DModel": (
        "LTXVideoTransformer3DModel",
        {
            **_SMALL,
            "in_channels": 8,
            "out_channels": 8,
            "cross_attention_dim": 16,
            "caption_channels": 16,
        },
        _ltx,
    ),
    "MochiTransformer3DModel": (
        "MochiTransformer3DModel",
        {
            **_SMALL,
            "in_channels": 4,
            "pooled_projection_dim": 16,
            "text_embed_dim": 16,
            "time_embed_dim": 4,
            "max_sequence_length": 5,
        },
        _masked(2, 4, 2, 8, 8),
    ),
    "WanTransformer3DModel": (
        "WanTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 16,
            "freq_dim": 16,
            "ffn_dim": 24,
            "num_layers": 2,
            "rope_max_seq_len": 32,
        },
        _states(2, 4, 2, 8, 8, encoder_hidden_states=(2, 5, 16)),
    ),
    "CogVideoXTransformer3DModel": (
        "CogVideoXTransformer3DModel",
        {
            **_SMALL,
            "in_channels": 4,
            "out_channels": 4,
            "time_embed_dim": 4,
            "text_embed_dim": 16,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 5,
            "max_text_seq_length": 5,
        },
        _states(2, 2, 4, 8, 8, encoder_hidden_states=(2, 5, 16)),
    ),
    "StableAudioDiTModel": (
        "StableAudioDiTModel",
        {
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "num_key_value_attention_heads": 1,
            "cross_attention_dim": 16,
            "time_proj_dim": 8,
            "global_states_input_dim": 16,
            "cross_attention_input_dim": 16,
        },
        _states(2, 4, 8, encoder_hidden_states=(2, 5, 16), global_hidden_states=(2, 1, 16)),
    ),
    "Kandinsky3UNet": (
        "Kandinsky3UNet",
        {
            "time_embedding_dim": 16,
            "groups": 4,
            "attention_head_dim": 4,
            "layers_per_block": 1,
            "block_out_channels": (8, 8, 16, 16),
            "cross_attention_dim": 16,
            "encoder_hid_dim": 12,
        },
        lambda: {
            "sample": _image(4, 16),
            "timestep": _time(),
            "encoder_hidden_states": torch.randn(2, 5, 12),
            "encoder_attention_mask": torch.ones(2, 5),
        },
    ),
    "T5FilmDecoder": (
        "T5FilmDecoder",
        {
            "input_dims": 8,
            "targets_length": 6,
            "d_model": 16,
            "num_layers": 2,
            "num_heads": 2,
            "d_kv": 8,
            "d_ff": 16,
        },
        lambda: {
            "encodings_and_masks": [(torch.randn(2, 5, 16), torch.ones(2, 5))],
            "decoder_input_tokens": torch.randn(2, 6, 8),
            "decoder_noise_time": torch.rand(2),
        },
    ),
}
