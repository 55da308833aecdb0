"""What the table of tiny_config.py cannot know about single architectures of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# fields of a configuration by architecture; None takes a field out of the table
FIXES: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "diffllama": {"attention_dropout": 0.0},  # its authors define no dropout
}

# all inputs of the forward function, from the configuration
INPUT_FIXES: dict[str, Callable[[Any], dict[str, Any]]] = {}
