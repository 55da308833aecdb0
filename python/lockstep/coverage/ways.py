"""The ways to run a step: eager, under Lockstep, and the peers that it is measured beside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .case import BadInput


class Eager:
    """Nothing added: the yardstick, and, against itself, the test of the harness."""

    name = "eager"
    # Compared to the last bit and by the kind of grad_fn; else values within the tolerances of
    # torch.testing.
    exact = True
    is_peer = False  # warnings are not compared, and what looks wrong is not doubted

    def wrap(self, step: Callable) -> Callable:
        return step

    def start_counting(self, fn: Callable) -> None:
        """Called before the third call: what was traced and merged before does not count."""

    def around_call(self) -> AbstractContextManager:
        """Open during each call."""
        return nullcontext()

    def settle(self) -> None:
        """Called between two calls."""

    def counts(self, fn: Callable) -> dict[str, Any]:
        return {}

    def close(self, fn: Callable) -> None:
        """Called after the last call."""


class Strict(Eager):
    """Lockstep, bit for bit, forced to co-execute."""

    name = "strict"

    def __init__(self, **options: Any) -> None:
        import lockstep
        from lockstep.knobs import is_disabled

        if not hasattr(lockstep, "function"):
            raise BadInput("Lockstep's core is not built here; run with `--way eager`, or build it")
        if is_disabled():
            raise BadInput("LOCKSTEP_DISABLE is set, so that all ways would be eager: unset it")
        self._lockstep = lockstep
        self._options = {"when": "always", "numerics": "strict", **options}

    def wrap(self, step: Callable) -> Callable:
        return self._lockstep.function(step, **self._options)

    def start_counting(self, fn: Callable) -> None:
        self._lockstep.reset_stats(fn)

    def counts(self, fn: Callable) -> dict[str, Any]:
        stats = self._lockstep.stats(fn)
        wanted = ("calls", "traced_calls", "ops", "graph_ops", "eager_ops", "divergences")
        counts = {k: stats.get(k, 0) for k in wanted}
        counts["reasons"] = dict(stats.get("reasons", {}))
        if counts["reasons"]:
            counts["examples"] = self._example_lines(fn)
        return counts

    def _example_lines(self, fn: Callable) -> dict[str, str]:
        """For each reason, a line of the program that has it, and the ops there."""
        found: dict[str, str] = {}
        for line in self._lockstep.explain(fn).to_dict()["lines"]:
            for reason in line["reasons"]:
                found.setdefault(reason, f"{line['where']}: {', '.join(line['ops'])}"[:200])
        return found

    def close(self, fn: Callable) -> None:
        self._lockstep.reset(fn)


class Default(Strict):
    """Lockstep with its own kernels; the next call finds compiled what this one asked for."""

    name = "default"
    exact = False

    def __init__(self) -> None:
        super().__init__(numerics="default")

    def settle(self) -> None:
        self._lockstep._C.wait_for_kernels()


class Compiled(Eager):
    """torch.compile over the same step, with the counters that it keeps itself."""

    exact = False
    is_peer = True

    def __init__(self, backend: str) -> None:
        self.name = f"compile-{backend}"
        self._backend = backend

    def wrap(self, step: Callable) -> Callable:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return torch.compile(step, backend=self._backend)

    def counts(self, fn: Callable) -> dict[str, Any]:
        counters = torch._dynamo.utils.counters
        breaks = dict(counters.get("graph_break", {}))
        frames = counters.get("frames", {})
        return {
            "graph_breaks": sum(breaks.values()),
            "graphs": counters.get("stats", {}).get("unique_graphs", 0),
            "frames": frames.get("total", 0),
            "frames_ok": frames.get("ok", 0),
            "reasons": {str(k).splitlines()[0][:100]: v for k, v in breaks.items()},
        }

    def close(self, fn: Callable) -> None:
        torch._dynamo.reset()


WAYS: dict[str, Callable[[], Eager]] = {
    "eager": Eager,
    "strict": Strict,
    "default": Default,
    "compile-eager": lambda: Compiled("eager"),
    "compile-inductor": lambda: Compiled("inductor"),
}


def create_way(name: str) -> Eager:
    if name not in WAYS:
        raise BadInput(f"there is no way {name!r} to run a case; choose from {', '.join(WAYS)}")
    return WAYS[name]()
