"""What the table of tiny_config.py cannot know about single architectures of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# fields of a configuration by architecture; None takes a field out of the table
FIXES: dict[str, dict[str, Any]] = {}

# all inputs of the forward function, from the configuration
INPUT_FIXES: dict[str, Callable[[Any], dict[str, Any]]] = {}

# architectures that cannot run from their own code alone, with the reason
NOT_RUN: dict[str, str] = {
    "timm_backbone": "needs the package timm",
    "timm_wrapper": "needs the package timm",
    "rag": "needs an index",
}
