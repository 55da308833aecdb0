"""Runs a sample program eagerly, co-executed, or side by side."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from tqdm import tqdm

from .compare import differences, largest_distance
from .program import Program, flatten
from .report import Column, Outcome, print_table
from .streams import RandomStreams

WARM_UP_STEPS = 20  # in these a program shows the ways that it can take

MODES = ("eager", "strict", "default", "compare")

Make = Callable[[str, int], Program]


class Copy:
    """One copy of a program with random streams of its own.

    decorate: None trains eagerly; otherwise the step is replaced by decorate(step).
    """

    def __init__(self, make: Make, size: str, seed: int, decorate: Callable | None = None):
        self.streams = RandomStreams(seed)
        with self.streams:
            self.program = make(size, seed)
        self.step = self.program.step if decorate is None else decorate(self.program.step)
        self.seconds: list[float] = []
        self.returned: object = None

    def advance(self, index: int) -> None:
        """Runs step `index` and keeps its time and what it returned."""
        with self.streams:
            start = time.perf_counter()
            self.returned = self.step(index)
            self.seconds.append(time.perf_counter() - start)

    def state(self) -> dict[str, object]:
        """Everything to compare: the program's state, its random streams, the step's result."""
        state = self.program.state()
        state.update(self.streams.state())
        state.update(self.results())
        return state

    def results(self) -> dict[str, object]:
        """What the last step returned."""
        return flatten("returned", self.returned)


def lockstep_decorator(when: str, numerics: str = "strict") -> Callable:
    """The decorator for a co-executed copy; a clear message where lockstep is not built."""
    try:
        import lockstep
    except ImportError as error:
        message = f"lockstep cannot be imported ({error}); --mode eager runs without it"
        raise SystemExit(message) from error

    def decorate(step: Callable) -> Callable:
        return lockstep.function(step, numerics=numerics, when=when)

    return decorate


def run_compare(
    make: Make,
    size: str,
    steps: int,
    when: str,
    seed: int = 0,
    numerics: tuple[str, ...] = ("strict",),
    show: bool = True,
) -> Outcome:
    """Trains an eager copy and one co-executed copy for each of `numerics` side by side.

    After every step all bits of the strict copy are compared with eager's, and the results of the
    default copy; stops at the first step after which bits differ. Counters start after the warm-up.
    `show` says whether there is a progress bar.
    """
    import lockstep

    eager = Copy(make, size, seed)
    copies = {name: Copy(make, size, seed, lockstep_decorator(when, name)) for name in numerics}
    every = {"eager": eager, **copies}
    columns = {name: Column(name, copy.seconds) for name, copy in every.items()}
    warm_up = min(WARM_UP_STEPS, steps // 2)
    outcome = Outcome(eager.program.name, columns, warm_up)
    bar = tqdm(range(steps), desc=outcome.name, unit="step", disable=not show)
    for index in bar:
        if index == warm_up:
            for copy in copies.values():
                lockstep.reset_stats(copy.step)
        for copy in every.values():
            copy.advance(index)
        outcome.steps = index + 1
        if "default" in copies:
            apart = largest_distance(eager.results(), copies["default"].results())
            outcome.loss_distance = max(outcome.loss_distance or 0.0, apart)
        if "strict" in copies:
            outcome.differences = differences(eager.state(), copies["strict"].state())
            if outcome.differences:
                break
        bar.set_postfix_str(
            ", ".join(f"{name} {copy.seconds[-1] * 1e3:.1f} ms" for name, copy in every.items())
        )
    bar.close()
    for name, copy in copies.items():
        columns[name].stats = dict(lockstep.stats(copy.step))
    return outcome


def run_single(make: Make, size: str, steps: int, mode: str, when: str, seed: int) -> Outcome:
    """Trains one copy: eager, strict or default. Counters start after the warm-up."""
    decorate = None if mode == "eager" else lockstep_decorator(when, mode)
    copy = Copy(make, size, seed, decorate)
    column = Column(mode, copy.seconds)
    warm_up = min(WARM_UP_STEPS, steps // 2)
    outcome = Outcome(copy.program.name, {mode: column}, warm_up, steps)
    for index in tqdm(range(steps), desc=copy.program.name, unit="step"):
        if index == warm_up and decorate is not None:
            import lockstep

            lockstep.reset_stats(copy.step)
        copy.advance(index)
    if decorate is not None:
        column.stats = dict(lockstep.stats(copy.step))
    return outcome


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, default="compare")
    parser.add_argument("--size", choices=("small", "bench"), default="bench")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--when", choices=("auto", "always"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error(f"--steps is {arguments.steps}; it must be at least 1")
    if not 0 <= arguments.seed < 2**32:
        parser.error(f"--seed is {arguments.seed}; numpy takes 0 to {2**32 - 1}")
    return arguments


def main(make: Make, argv: list[str] | None = None) -> int:
    """The command line of every sample. Returns 1 if the copies differ, else 0."""
    arguments = parse_arguments(argv)
    size, steps, seed = arguments.size, arguments.steps, arguments.seed
    if arguments.mode == "compare":
        lockstep_decorator(arguments.when)
        numerics = ("strict", "default")
        outcome = run_compare(make, size, steps, arguments.when, seed, numerics)
    else:
        outcome = run_single(make, size, steps, arguments.mode, arguments.when, seed)
    print_table(outcome)
    return 1 if outcome.differences else 0
