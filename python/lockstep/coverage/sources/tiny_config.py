"""Shrinks any configuration of the package transformers by the names of its fields.

A configuration class tells its fields and defaults in its signature; a table says what a tiny
model has for each. What a name does not tell (the sub-configurations of a composite) is shrunk
in turn.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 128, 32, 8

# first match wins; the value may depend on the default
_INTS: list[tuple[str, int]] = [
    (r"vocab_size|.*_vocab_size|vocab_size_.*|codebook_size|num_codes|codebook_dim", VOCABULARY),
    (r"type_vocab_size", 2),
    (
        r"max_position_embeddings|n_positions|n_ctx|max_.*_positions|max_sequence_length|block_size"
        r"|seq_length|max_seq_len|context_length",
        128,
    ),
    (r"max_2d_position_embeddings", 1024),
    (r"num_key_value_heads|num_kv_heads|.*num_key_value_heads|multi_query_group_num", 2),
    (r"head_dim|d_kv|attention_head_size|.*_head_dim|head_size|d_head|kv_channels", WIDTH // HEADS),
    (r"kv_lora_rank|q_lora_rank|.*lora_rank|time_step_rank|.*_low_rank_dim", 8),
    (
        r"(n_|num_)?(experts|local_experts|routed_experts)|num_experts|moe_num_experts|.*num_experts"
        r"|n_routed_experts|num_local_experts",
        4,
    ),
    (r"num_experts_per_tok|moe_topk|top_k|moe_top_k|moe_k|num_selected_experts", 2),
    (r"n_shared_experts|num_shared_experts|n_group|topk_group|first_k_dense_replace", 1),
    (r".*(num_hidden_layers|num_layers|n_layers?|_layers|num_blocks|n_blocks|depth)", LAYERS),
    (r".*(num_attention_heads|num_heads|n_heads?|attention_heads|n_head|nhead)", HEADS),
    (
        r".*(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|feed_forward_dim|mlp_dim"
        r"|d_inner|dim_feedforward|ffn_size|intermediate_dim|ff_dim)",
        2 * WIDTH,
    ),
    (
        r".*(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|embed_size|d_embed"
        r"|hidden_sizes?|projection_dim|embedding_dim|emb_dim|hidden_channels|output_dim|proj_size"
        r"|projection_size|encoder_dim|decoder_dim|projector_dim|fpn_dim|dim)",
        WIDTH,
    ),
    (r"patch_size|.*_patch_size", PATCH),
    (r"image_size|input_size|img_size|.*image_size", IMAGE),
    (r"num_mel_bins|feature_size|num_mels", 16),
    (r"max_source_length", 64),
    (r"ssm_state_size|state_size|mamba_d_state|mamba_state_dim", 8),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"mamba_d_head", 8),
    (r"chunk_size|mamba_chunk_size", 8),
    (r"sliding_window|attention_window|local_attention|.*window_size", 8),
    (r"num_queries|num_query_tokens|num_latents", 6),
    (r"hidden_size_per_layer_input|altup_.*", 8),
]
_LISTS: list[tuple[str, Any]] = [
    (r"depths|layers_per_stage|num_blocks|stage_num_blocks|blocks|num_conv_layers", lambda i: 1),
    (r"num_attention_heads|num_heads|encoder_num_heads", lambda i: 2),
    (
        r"hidden_sizes|embed_dims?|encoder_hidden_sizes|embedding_dims|dims|channels"
        r"|neck_hidden_sizes|stage_out_channels|out_channels",
        lambda i: 8 * (i + 1),
    ),
    (r"conv_dim|tdnn_dim", lambda i: WIDTH),
]
_KEEP = re.compile(
    r"(pad|bos|eos|sep|cls|mask|unk|decoder_start|image|video|audio|boi|eoi).*(token|index)"
    r"|.*token_id|.*_index|num_labels|chunk_size_feed_forward|num_channels"
)


def _matching(table: list[tuple[str, Any]], name: str) -> Any:
    return next((v for pattern, v in table if re.fullmatch(pattern, name)), None)


def _field(name: str, default: Any) -> Any:
    """The tiny value of a field; None to leave it as it is."""
    if isinstance(default, bool) or _KEEP.fullmatch(name):
        return None
    if isinstance(default, int):
        value = _matching(_INTS, name)
        return min(value, default) if value is not None and default > 0 else None
    if isinstance(default, float):
        return 0.1 if "dropout" in name and "layer" not in name else None
    if isinstance(default, (list, tuple)) and default and isinstance(default[0], int):
        item = _matching(_LISTS, name)
        return None if item is None else type(default)(item(i) for i in range(len(default)))
    if default is None and name in ("num_key_value_heads",):
        return 2
    return None


def _defaults(config_class: type) -> dict[str, Any]:
    parameters = inspect.signature(config_class.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def overrides(config_class: type) -> dict[str, Any]:
    """Keyword arguments that make a configuration of this class tiny."""
    found = {}
    subs = getattr(config_class, "sub_configs", None) or {}
    for name, default in _defaults(config_class).items():
        if name not in subs and (value := _field(name, default)) is not None:
            found[name] = value
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    for name, default in _defaults(config_class).items():
        if name in special and isinstance(default, int) and default >= VOCABULARY:
            found[name] = special[name]
    whole = config_class() if any("Auto" in sub.__name__ for sub in subs.values()) else None
    for name, sub in subs.items():
        if "Auto" not in sub.__name__:
            found[name] = overrides(sub)
        elif (part := getattr(whole, name, None)) is not None:
            found[name] = {"model_type": part.model_type, **overrides(type(part))}
    return found


def create_config(config_class: type, fixes: dict[str, Any]) -> Any:
    """A tiny configuration; fixes go over the table, a value of None takes a field out of it."""
    kwargs = {**overrides(config_class), **fixes}
    return config_class(**{k: v for k, v in kwargs.items() if not (k in fixes and v is None)})
