"""The closing table of a sample run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.table import Table


@dataclass
class Column:
    """One copy of the program.

    name     eager, strict or default
    seconds  time of each step
    stats    lockstep.stats of the co-executed step since the warm-up; empty for eager
    """

    name: str
    seconds: list[float]
    stats: dict = field(default_factory=dict)

    def graph_share(self) -> float:
        """Share of ops that the graph ran, 0 to 1; 0 if there were none."""
        return self.stats["graph_ops"] / self.stats["ops"] if self.stats.get("ops") else 0.0


@dataclass
class Outcome:
    """What a run gave.

    columns        by name, in the order of the table
    warm_up        number of steps at the start that the figures leave out
    differences    one sentence each for what differs between eager and strict after the last step
    loss_distance  how far default's results and eager's were apart at most (largest_distance);
                   None where one of the two did not run
    """

    name: str
    columns: dict[str, Column]
    warm_up: int
    steps: int = 0
    differences: list[str] = field(default_factory=list)
    loss_distance: float | None = None


def print_table(outcome: Outcome) -> None:
    """Prints the result of a run."""
    table = Table(title=f"{outcome.name}: step 1 to {outcome.steps}, {outcome.warm_up} of warm-up")
    table.add_column("")
    columns = list(outcome.columns.values())
    for column in columns:
        table.add_column(column.name, justify="right")
    if len(columns) > 1:
        table.add_row("against eager, after every step", *_agreement(outcome))
    times = [_times(column.seconds[outcome.warm_up :]) for column in columns]
    for label, *cells in zip(("median", "p10", "p90"), *times, strict=True):
        table.add_row(f"step time, {label}", *cells)
    if len(columns) > 1:
        table.add_row("step time, of eager's", *_ratios(outcome))
    _add_stats(table, columns)
    console = Console()
    console.print(table)
    for sentence in outcome.differences[:10]:
        console.print(f"after step {outcome.steps - 1}: {sentence}", highlight=False)
    if len(outcome.differences) > 10:
        console.print(f"and {len(outcome.differences) - 10} more")


def _agreement(outcome: Outcome) -> list[str]:
    cells = {"strict": "bits differ" if outcome.differences else "all bits equal"}
    if outcome.loss_distance is not None:
        cells["default"] = f"losses within {outcome.loss_distance:.1e}"
    return [cells.get(name, "") for name in outcome.columns]


def _ratios(outcome: Outcome) -> list[str]:
    """Medians of the ratios of steps that ran one after the other."""
    eager = np.array(outcome.columns["eager"].seconds[outcome.warm_up :])
    cells = []
    for column in outcome.columns.values():
        own = np.array(column.seconds[outcome.warm_up :])
        shown = column.name != "eager" and own.size > 0
        cells.append(f"{np.median(own / eager):.2f}" if shown else "")
    return cells


def _times(seconds: list[float]) -> tuple[str, str, str]:
    if not seconds:
        return "", "", ""
    median, p10, p90 = np.percentile(np.array(seconds) * 1e3, (50, 10, 90))
    return f"{median:.2f} ms", f"{p10:.2f} ms", f"{p90:.2f} ms"


def _add_stats(table: Table, columns: list[Column]) -> None:
    if not any(column.stats for column in columns):
        return

    def add(label, cell_of):
        table.add_row(label, *(cell_of(column) if column.stats else "" for column in columns))

    add("ops run by the graph", lambda column: f"{column.graph_share():.2%}")
    add("materializations", lambda column: str(column.stats["fetches"]))
    add("divergences", lambda column: str(column.stats["divergences"]))
    add("time Python waited", lambda column: f"{column.stats['wait_seconds'] * 1e3:.1f} ms")
    for reason in sorted({name for column in columns for name in column.stats.get("reasons", {})}):
        add(f"reason {reason}", lambda column: str(column.stats["reasons"].get(reason, 0)))
