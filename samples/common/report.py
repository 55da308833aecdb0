"""The closing table of a sample run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.table import Table


@dataclass
class Outcome:
    """What a run gave.

    eager_seconds, copy_seconds  time of each step, empty for a copy that did not run
    warm_up                      number of steps at the start that the figures leave out
    differences                  one sentence each for what differs after the last step
    stats                        lockstep.stats of the co-executed step since the warm-up
    """

    name: str
    eager_seconds: list[float]
    copy_seconds: list[float]
    warm_up: int
    steps: int = 0
    differences: list[str] = field(default_factory=list)
    stats: dict = field(default_factory=dict)

    def graph_share(self) -> float:
        """Share of ops that the graph ran, 0 to 1; 0 if there were none."""
        return self.stats["graph_ops"] / self.stats["ops"] if self.stats.get("ops") else 0.0


def print_table(outcome: Outcome, mode: str) -> None:
    """Prints the result of a run; `mode` is eager, strict or compare."""
    table = Table(title=f"{outcome.name}: step 1 to {outcome.steps}, {outcome.warm_up} of warm-up")
    for column in ("", "eager", "lockstep"):
        table.add_column(column, justify="left" if not column else "right")
    if mode == "compare":
        table.add_row("equal after every step", "", "no" if outcome.differences else "yes")
    eager = _times(outcome.eager_seconds[outcome.warm_up :])
    copy = _times(outcome.copy_seconds[outcome.warm_up :])
    for label, left, right in zip(("median", "p10", "p90"), eager, copy, strict=True):
        table.add_row(f"step time, {label}", left, right)
    if outcome.stats:
        _add_stats(table, outcome)
    console = Console()
    console.print(table)
    for sentence in outcome.differences[:10]:
        console.print(f"after step {outcome.steps - 1}: {sentence}", highlight=False)
    if len(outcome.differences) > 10:
        console.print(f"and {len(outcome.differences) - 10} more")


def _times(seconds: list[float]) -> tuple[str, str, str]:
    if not seconds:
        return "", "", ""
    median, p10, p90 = np.percentile(np.array(seconds) * 1e3, (50, 10, 90))
    return f"{median:.2f} ms", f"{p10:.2f} ms", f"{p90:.2f} ms"


def _add_stats(table: Table, outcome: Outcome) -> None:
    stats = outcome.stats
    table.add_row("ops run by the graph", "", f"{outcome.graph_share():.2%}")
    table.add_row("materializations", "", str(stats["fetches"]))
    table.add_row("divergences", "", str(stats["divergences"]))
    table.add_row("time Python waited", "", f"{stats['wait_seconds'] * 1e3:.1f} ms")
    for reason, count in sorted(stats.get("reasons", {}).items()):
        table.add_row(f"reason {reason}", "", str(count))
