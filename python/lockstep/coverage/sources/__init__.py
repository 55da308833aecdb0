"""Where cases come from: one module a source, each with `cases() -> Iterator[Case]`.

To add a source: write a module with that function and name it in the table below.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

from ..case import BadInput, Case

SOURCES: dict[str, str] = {
    "ops": "every sample of every op of PyTorch's own operator database",
    "resized": "every op of that database into an `out=` that it resizes",
    "sizes": "every op of that database on one size after the other, at one place",
    "modules": "every module of PyTorch's own module database, training and evaluating",
    "optims": "every optimizer of PyTorch's own optimizer database",
    "transformers": "architectures of the package transformers, tiny and random",
    "geometric": "models and layers of the package torch_geometric",
    "diffusers": "models of the package diffusers, tiny and random",
    "python": "programs that contain every statement and expression class of Python's grammar",
}
_MODULES = {"transformers": "transformers_models", "python": "python_programs"}
_NEEDS = {
    "ops": ("expecttest",),
    "resized": ("expecttest",),
    "sizes": ("expecttest",),
    "modules": ("expecttest",),
    "optims": ("expecttest",),
    "transformers": ("transformers",),
    "geometric": ("torch_geometric",),
    "diffusers": ("diffusers",),
}


# what children would otherwise import one by one; none of these computes or starts a thread
_PRELOADED = ("torch._dynamo", "torch.utils.checkpoint", "torch.distributed", "torch.nested")
_PRELOADED_BY = {
    "transformers": ("transformers.modeling_utils", "transformers.generation.utils"),
    "geometric": ("torch_geometric.nn",),
    "diffusers": ("diffusers.models",),
    "python": ("torch.func", "asyncio", "torch.nn.attention"),
}


def preload(names: list[str]) -> None:
    """Imports into the parent what the cases of these sources import."""
    for module in (*_PRELOADED, *(m for n in names for m in _PRELOADED_BY.get(n, ()))):
        importlib.import_module(module)


def load_source(name: str) -> Iterator[Case]:
    """The cases of a source; raises BadInput where it is unknown or its package is missing."""
    if name not in SOURCES:
        raise BadInput(f"there is no source {name!r}; choose from {', '.join(SOURCES)}")
    for package in _NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            raise BadInput(f"source {name!r} needs the package {package}; install it with pip")
    module = importlib.import_module(f".{_MODULES.get(name, name)}", __package__)
    return module.cases()
