"""Architectures of the package transformers, from their own code, tiny and randomly initialised.

One case is one architecture: training steps with AdamW, gradient clipping and dropout, and, where
the model generates, 20 sampled tokens with the cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from ..case import NOT_RUN_TAG, Case, Program, Run, Skip
from ..copying import copy_tree, tensors_in
from .tiny_config import IMAGE, VOCABULARY, create_config
from .tiny_fixes import FIXES, INPUT_FIXES
from .tiny_not_run import NOT_RUN

_BATCH, _LENGTH, _NEW_TOKENS = 2, 10, 20
_PARAMETER_LIMIT = 3_000_000
# in this order: the first head that an architecture has is the one that is trained
_HEADS = (
    "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "IMAGE_CLASSIFICATION",
    "CTC", "AUDIO_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION",
    "OBJECT_DETECTION", "VIDEO_CLASSIFICATION", "SEQUENCE_CLASSIFICATION", "IMAGE_TEXT_TO_TEXT",
)  # fmt: skip


def cases() -> Iterator[Case]:
    from transformers.models.auto import configuration_auto, modeling_auto

    tables = [getattr(modeling_auto, f"MODEL_FOR_{h}_MAPPING_NAMES") for h in _HEADS]
    tables.append(modeling_auto.MODEL_MAPPING_NAMES)
    for kind in configuration_auto.CONFIG_MAPPING_NAMES:
        found = next((t[kind] for t in tables if kind in t), None)
        if found is None or "timm" in kind:
            continue
        model_name = found if isinstance(found, str) else found[0]
        tags = (NOT_RUN_TAG,) if kind in NOT_RUN else ()
        yield Case("transformers", kind, lambda k=kind, m=model_name: _programs(k, m), tags=tags)


def _programs(kind: str, model_name: str) -> Iterator[Program]:
    if kind in NOT_RUN:
        yield Program("train", lambda: _not_run(kind))
        return
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_class = getattr(transformers, model_name)
    config_class = getattr(model_class, "config_class", None) or CONFIG_MAPPING[kind]

    def config() -> Any:
        return create_config(config_class, FIXES.get(kind, {}))

    yield Program("train", lambda: _training_run(kind, model_class, config()))
    if model_class.can_generate():
        yield Program("generate", lambda: _generation_run(kind, model_class, config()))


def _not_run(kind: str) -> Run:
    raise Skip(NOT_RUN[kind])


def _create_model(model_class: type, config: Any) -> torch.nn.Module:
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class(config).parameters())
    if size > _PARAMETER_LIMIT:
        raise Skip(f"no tiny configuration: {size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    return model_class(config)


def _ids(config: Any, length: int = _LENGTH) -> torch.Tensor:
    text = config.get_text_config()
    size = min(getattr(text, "vocab_size", VOCABULARY) or VOCABULARY, VOCABULARY)
    return torch.randint(5, size - 1, (_BATCH, length))


def _pixels(config: Any) -> torch.Tensor:
    part = getattr(config, "vision_config", config)
    part = part if not isinstance(part, dict) else config
    size = getattr(part, "image_size", IMAGE) or IMAGE
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return torch.randn(_BATCH, getattr(part, "num_channels", 3) or 3, height, width)


def _values(name: str, config: Any) -> torch.Tensor | None:
    """An input of the forward function by its name."""
    if name in ("input_ids", "decoder_input_ids"):
        return _ids(config)
    if name == "pixel_values":
        return _pixels(config)
    if name == "input_values":
        return torch.randn(_BATCH, 2000)
    if name == "input_features":
        return torch.randn(_BATCH, getattr(config, "num_mel_bins", 16), 64)
    if name == "bbox":
        return torch.randint(0, 50, (_BATCH, _LENGTH, 2)).repeat(1, 1, 2).sort(-1).values
    return None


def _inputs(kind: str, model: torch.nn.Module, generating: bool) -> dict[str, torch.Tensor]:
    config, names = model.config, inspect.signature(model.forward).parameters
    if kind in INPUT_FIXES:
        return INPUT_FIXES[kind](config)
    wanted = [getattr(model, "main_input_name", "input_ids")]
    vision_and_text = "pixel_values" in names and "input_ids" in names
    if vision_and_text and "image_token_id" not in vars(config):
        wanted += ["input_ids", "pixel_values"]
    if "bbox" in names:
        wanted.append("bbox")
    if getattr(config, "is_encoder_decoder", False) and not generating:
        wanted.append("decoder_input_ids")
    if wanted == ["pixel_values"] and "pixel_values" not in names:
        wanted = ["input_ids"]
    found = {n: _values(n, config) for n in dict.fromkeys(wanted) if n in names}
    if not found or any(v is None for v in found.values()):
        raise Skip(f"no input for {', '.join(wanted)}")
    if "input_ids" in found and "labels" in names and _takes_token_labels(model):
        found["labels"] = _ids(config)
        found.pop("decoder_input_ids", None)
    if generating:
        found = {k: v for k, v in found.items() if k not in ("labels", "decoder_input_ids")}
    return found


def _takes_token_labels(model: torch.nn.Module) -> bool:
    name = type(model).__name__
    return name.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MaskedLM"))


def _loss(output: Any) -> torch.Tensor:
    """The model's own loss, or one that depends on every floating-point result."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    floats = [t for t in tensors_in(values) if t.is_floating_point() and t.requires_grad]
    if not floats:
        raise Skip("no result that has a gradient")
    return sum(t.float().pow(2).mean() for t in floats)


def _training_run(kind: str, model_class: type, config: Any) -> Run:
    model = _create_model(model_class, config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [_inputs(kind, model, generating=False) for _ in range(2)]

    def step(batch: dict[str, torch.Tensor]) -> Any:
        optimizer.zero_grad()
        output = model(**batch)
        loss = _loss(output)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss, norm

    inputs = [(copy_tree(batches[i % 2]),) for i in range(4)]
    return Run(step, lambda i: inputs[i], state=(model, optimizer))


def _generation_run(kind: str, model_class: type, config: Any) -> Run:
    model = _create_model(model_class, config)
    model.eval()
    batch = _inputs(kind, model, generating=True)
    settings = {"max_new_tokens": _NEW_TOKENS, "min_new_tokens": _NEW_TOKENS, "do_sample": True}

    def step(given: dict[str, torch.Tensor]) -> Any:
        with torch.no_grad():
            return model.generate(**given, **settings, use_cache=True, pad_token_id=0)

    return Run(step, lambda i: (copy_tree(batch),), state=None, calls=3)
