"""Runs cases in forked workers, a few at a time, and sums their programs up to one result a case.

The parent stays single-threaded: a child of a process with an OpenMP team in it hangs.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .case import Case
from .cli_text import portable
from .worker import Child, start_child

_RESTART_LIMIT = 5
_FAILURE_LIMIT = 8
_EXAMPLE_LIMIT = 3
_SEVERITY = ("crash", "timeout", "wrong", "error", "equal", "skip")
_SUMMED = ("ops", "graph_ops", "eager_ops", "divergences", "traced_calls", "graph_breaks", "graphs")


@dataclass
class Options:
    """How to run: the way, how many at once, seconds a case, threads a worker."""

    way: str = "strict"
    workers: int = 1
    limit_s: float = 120.0
    threads: int = 1
    program: str | None = None


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def run_cases(
    cases: Iterable[Case], options: Options, on_result: Callable[[dict[str, Any]], None]
) -> None:
    """Runs every case; on_result gets each one's result as soon as it is there."""
    waiting = iter(cases)
    running: dict[int, Child] = {}
    exhausted = False
    try:
        while running or not exhausted:
            while not exhausted and len(running) < options.workers:
                case = next(waiting, None)
                if case is None:
                    exhausted = True
                    break
                child = _start(case, options)
                running[child.pipe] = child
            if running:
                _step(running, options, on_result)
    finally:
        for child in running.values():
            child.stop()
            os.waitpid(child.pid, 0)


def _start(case: Case, options: Options, first: int = 0) -> Child:
    limit_s = case.limit_s or options.limit_s
    return start_child(case, options.way, limit_s, options.threads, first, options.program)


def _step(
    running: dict[int, Child], options: Options, on_result: Callable[[dict[str, Any]], None]
) -> None:
    nearest = min(c.deadline for c in running.values())
    ready, _, _ = select.select(list(running), [], [], max(0.0, nearest - time.monotonic()))
    now = time.monotonic()
    for pipe, child in list(running.items()):
        if pipe in ready and child.read():
            continue
        if pipe not in ready and now < child.deadline:
            continue
        if pipe not in ready:
            child.stop()
            while child.read():
                pass
        del running[pipe]
        again = _finish(child, options)
        if again is not None:
            running[again.pipe] = again
        else:
            on_result(summarize(child, options.way))


def _finish(child: Child, options: Options) -> Child | None:
    """Notes how the child ended; returns its successor where programs are left to run."""
    _, status = os.waitpid(child.pid, 0)
    os.close(child.pipe)
    if child.at[2] == "end" and status == 0:
        child.errors.close()
        return None
    index, program, phase = child.at
    child.results.append(_death(child, status, program, phase))
    child.errors.close()
    if phase in ("start", "programs", "end") or child.restarts >= _RESTART_LIMIT:
        return None
    if options.program is not None:
        return None
    again = _start(child.case, options, index + 1)
    again.results, again.restarts, again.started = child.results, child.restarts + 1, child.started
    return again


def _death(child: Child, status: int, program: str, phase: str) -> dict[str, Any]:
    if child.stopped_late:
        kind, how = "timeout", "ran past its time limit"
    elif os.WIFSIGNALED(status):
        kind, how = "crash", f"died of {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        kind, how = "crash", f"ended with status {os.waitstatus_to_exitcode(status)}"
    detail = [f"{how} in phase {phase!r}", *child.error_lines()]
    if phase in ("eager", "eager again", "programs"):
        kind, detail[0] = "skip", f"eager itself {how}"
    return {"program": program, "status": kind, "detail": detail}


def summarize(child: Child, way: str) -> dict[str, Any]:
    """One result of a case from those of its programs."""
    results = child.results
    counts = Counter(r["status"] for r in results)
    worst = next((s for s in _SEVERITY if counts[s]), "skip")
    case: dict[str, Any] = {
        "case": child.case.id,
        "way": way,
        "status": worst,
        "programs": len(results),
        "counts": dict(counts),
        "seconds": round(time.monotonic() - child.started, 3),
    }
    if not results:
        case["skips"] = {"no program": 1}
        return case
    failures = [r for r in results if r["status"] in ("crash", "timeout", "wrong", "error")]
    if failures:
        keep = ("program", "status", "detail")
        case["failures"] = [{k: r[k] for k in keep} for r in failures[:_FAILURE_LIMIT]]
        for failure in case["failures"]:
            failure["detail"] = [portable(line) for line in failure["detail"]]
    skips = Counter(portable(r["detail"][0]) for r in results if r["status"] == "skip")
    if skips:
        case["skips"] = dict(skips)
    _add_measures(case, [r for r in results if "counts" in r])
    return case


def _add_measures(case: dict[str, Any], judged: list[dict[str, Any]]) -> None:
    case["eager_s"] = round(sum(r["eager_s"] for r in judged), 6)
    case["way_s"] = round(sum(r["way_s"] for r in judged), 6)
    case["raised"] = sum(bool(r["raised"]) for r in judged)
    case["all_raised"] = sum(r["all_raised"] for r in judged)
    unstable = [f"{r['program']}: {r['unstable'][0]}" for r in judged if r["unstable"]]
    if unstable:
        case["self_differs"] = len(unstable)
        case["self_differs_in"] = unstable[:_EXAMPLE_LIMIT]
    dense = [r for r in judged if r["dense"]]
    for prefix, group in (("", judged), ("dense_", dense)):
        for key in _SUMMED:
            if any(key in r["counts"] for r in group):
                case[prefix + key] = sum(r["counts"].get(key, 0) for r in group)
    case["dense"] = len(dense)
    late = [r["program"] for r in dense if r["repeats"] and r["counts"].get("divergences")]
    if late:
        case["late_divergences"] = len(late)
        case["late_divergences_in"] = late[:_EXAMPLE_LIMIT]
    reasons: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for r in judged:
        for reason, count in r["counts"].get("reasons", {}).items():
            reasons[reason] += count
            line = r["counts"].get("examples", {}).get(reason, "")
            examples.setdefault(reason, portable(f"{r['program']} {line}".strip()))
    if reasons:
        case["reasons"] = dict(reasons)
        case["reason_examples"] = examples
