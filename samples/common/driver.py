"""Runs a sample program eagerly, co-executed, or both side by side."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from tqdm import tqdm

from .compare import differences
from .program import Program, flatten
from .report import Outcome, print_table
from .streams import RandomStreams

WARM_UP_STEPS = 20  # in these a program shows the ways that it can take

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
        state.update(flatten("returned", self.returned))
        return state


def lockstep_decorator(when: str) -> Callable:
    """The decorator for the co-executed copy; a clear message where lockstep is not built."""
    try:
        import lockstep
    except ImportError as error:
        message = f"lockstep cannot be imported ({error}); --mode eager runs without it"
        raise SystemExit(message) from error

    def decorate(step: Callable) -> Callable:
        return lockstep.function(step, numerics="strict", when=when)

    return decorate


def run_compare(
    make: Make, size: str, steps: int, when: str, seed: int = 0, show: bool = True
) -> Outcome:
    """Trains an eager and a co-executed copy side by side and compares them after every step.

    Stops at the first step after which they differ. Counters start after the warm-up.
    `show` says whether there is a progress bar.
    """
    import lockstep

    eager = Copy(make, size, seed)
    copy = Copy(make, size, seed, lockstep_decorator(when))
    warm_up = min(WARM_UP_STEPS, steps // 2)
    outcome = Outcome(eager.program.name, eager.seconds, copy.seconds, warm_up)
    bar = tqdm(range(steps), desc=eager.program.name, unit="step", disable=not show)
    for index in bar:
        if index == warm_up:
            lockstep.reset_stats(copy.step)
        eager.advance(index)
        copy.advance(index)
        outcome.differences = differences(eager.state(), copy.state())
        outcome.steps = index + 1
        if outcome.differences:
            break
        bar.set_postfix_str(_ratio(eager.seconds, copy.seconds))
    bar.close()
    outcome.stats = dict(lockstep.stats(copy.step))
    return outcome


def run_single(make: Make, size: str, steps: int, decorate: Callable | None, seed: int) -> Outcome:
    """Trains one copy, eager or co-executed. Counters start after the warm-up."""
    copy = Copy(make, size, seed, decorate)
    warm_up = min(WARM_UP_STEPS, steps // 2)
    outcome = Outcome(copy.program.name, [], [], warm_up, steps)
    if decorate is None:
        outcome.eager_seconds = copy.seconds
    else:
        outcome.copy_seconds = copy.seconds
    for index in tqdm(range(steps), desc=copy.program.name, unit="step"):
        if index == warm_up and decorate is not None:
            import lockstep

            lockstep.reset_stats(copy.step)
        copy.advance(index)
    if decorate is not None:
        outcome.stats = dict(lockstep.stats(copy.step))
    return outcome


def _ratio(eager: list[float], copy: list[float]) -> str:
    return f"eager {eager[-1] * 1e3:.1f} ms, lockstep {copy[-1] * 1e3:.1f} ms"


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("eager", "strict", "compare"), default="compare")
    parser.add_argument("--size", choices=("small", "bench"), default="bench")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--when", choices=("auto", "always"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error(f"--steps is {arguments.steps}; it must be at least 1")
    return arguments


def main(make: Make, argv: list[str] | None = None) -> int:
    """The command line of every sample. Returns 1 if the copies differ, else 0."""
    arguments = parse_arguments(argv)
    size, steps, seed = arguments.size, arguments.steps, arguments.seed
    if arguments.mode == "compare":
        lockstep_decorator(arguments.when)
        outcome = run_compare(make, size, steps, arguments.when, seed)
    else:
        decorate = None if arguments.mode == "eager" else lockstep_decorator(arguments.when)
        outcome = run_single(make, size, steps, decorate, seed)
    print_table(outcome, arguments.mode)
    return 1 if outcome.differences else 0
