"""The command line: which cases, how, where the results go."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import platform
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .case import NOT_RUN_TAG, BadInput, Case
from .cli_text import reproduce
from .journal import Journal, read_journal
from .pool import Options, run_cases, thread_count
from .sources import SOURCES, load_source, preload
from .ways import WAYS, create_way

_BAD = ("crash", "timeout", "wrong", "error")


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m lockstep.coverage",
        description="Runs other people's code with and without Lockstep and compares every bit.",
        epilog="sources: " + "; ".join(f"{k}: {v}" for k, v in SOURCES.items()),
    )
    p.add_argument("--source", action="append", metavar="NAME", help="a source (all by default)")
    p.add_argument("--filter", action="append", metavar="GLOB", help="only ids that match")
    p.add_argument("--case", metavar="ID", help="one case, with all that differs shown")
    p.add_argument("--program", metavar="NAME", help="with --case: one program of it")
    p.add_argument("--function", metavar="MODULE:NAME", help="your own factory of cases")
    p.add_argument("--way", default="strict", help=f"compare with eager: {', '.join(WAYS)}")
    p.add_argument("--peer", choices=["compile"], help="run the cases under torch.compile, too")
    p.add_argument("--workers", type=int, default=1, metavar="N", help="cases at once (1)")
    p.add_argument("--threads", type=int, default=1, metavar="N", help="threads a worker (1)")
    p.add_argument("--limit", type=float, default=120, metavar="S", help="seconds a program (120)")
    p.add_argument("--sample", type=int, metavar="N", help="about N cases, of all kinds")
    p.add_argument("--out", type=Path, default=Path("coverage-results"), metavar="FOLDER")
    p.add_argument("--resume", action="store_true", help="go on where the journal ends")
    p.add_argument("--again", action="store_true", help="with --resume: run failed cases again")
    p.add_argument("--list", action="store_true", help="print the ids of the cases and stop")
    p.add_argument("--report", action="store_true", help="only write the reports of a journal")
    p.add_argument("--shrink", metavar="SEED", help="cut a failing random program down")
    return p


def select_cases(args: argparse.Namespace) -> list[Case]:
    """The cases that the options name, in the order of their sources."""
    if args.function:
        from .own_code import load_function

        return [load_function(args.function)]
    names = args.source or list(SOURCES)
    if args.case:
        names = [args.case.split("/", 1)[0]]
    cases = list(itertools.chain.from_iterable(load_source(name) for name in names))
    if args.case:
        cases = [c for c in cases if c.id == args.case]
    for pattern in args.filter or ():
        cases = [c for c in cases if c.matches(pattern)]
    if not cases:
        raise BadInput("no case matches; see the ids with --list")
    return stratified(cases, args.sample) if args.sample else cases


def stratified(cases: list[Case], count: int) -> list[Case]:
    """About count cases, the same ones every time, and some of every source."""
    by_source: dict[str, list[Case]] = {}
    for case in (c for c in cases if NOT_RUN_TAG not in c.tags):
        by_source.setdefault(case.source, []).append(case)
    chosen: list[Case] = []
    for group in by_source.values():
        share = max(
            1, round(count * (len(group) / len(cases)) ** 0.5 / _root_sum(by_source, cases))
        )
        ranked = sorted(group, key=lambda c: hashlib.sha256(c.id.encode()).digest())
        keep = {c.id for c in ranked[:share]}
        chosen += [c for c in group if c.id in keep]
    return chosen


def _root_sum(by_source: dict[str, list[Case]], cases: list[Case]) -> float:
    return sum((len(g) / len(cases)) ** 0.5 for g in by_source.values())


def _progress(total: int) -> Any:
    try:
        import tqdm
    except ImportError:
        return None
    tqdm.tqdm.monitor_interval = 0  # its monitor would be a thread of the parent
    patience = 0.1 if sys.stderr.isatty() else 30
    return tqdm.tqdm(total=total, unit="case", dynamic_ncols=True, mininterval=patience)


def _header(args: argparse.Namespace, way: str) -> dict[str, Any]:
    import numpy
    import torch

    return {
        "way": way,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "workers": args.workers,
        "threads": args.threads,
        "cpus": os.cpu_count(),
    }


def _print_failures(result: dict[str, Any], write: Any, full: bool = False) -> None:
    for failure in result.get("failures", [])[: None if full else 1]:
        write(f"{failure['status'].upper()} {result['case']} {failure['program']}")
        for line in failure["detail"][: None if full else 2]:
            write(f"    {line}")
        write("    " + reproduce(result["case"], failure["program"], result["way"]))


def _run(args: argparse.Namespace, cases: list[Case], way: str) -> dict[str, dict[str, Any]]:
    options = Options(way, args.workers, args.limit, args.threads, args.program)
    journal = Journal(args.out / f"{way}.jsonl", _header(args, way), args.resume)
    redo = {k for k, v in journal.done.items() if args.again and v["status"] in _BAD}
    todo = [c for c in cases if c.id not in journal.done or c.id in redo]
    bar, counts = _progress(len(todo)), Counter()
    write = bar.write if bar is not None else print

    def on_result(result: dict[str, Any]) -> None:
        journal.add(result)
        counts[result["status"]] += 1
        _print_failures(result, write)
        if bar is not None:
            bar.update()
            bar.set_postfix(counts, refresh=False)

    try:
        run_cases(todo, options, on_result)
    finally:
        journal.close()
        if bar is not None:
            bar.close()
    return journal.done


def _run_one(args: argparse.Namespace, case: Case) -> int:
    options = Options(args.way, 1, args.limit, args.threads, args.program)
    results: list[dict[str, Any]] = []
    run_cases([case], options, results.append)
    result = results[0]
    if args.function and result["status"] == "skip":
        raise BadInput(next(iter(result["skips"])).removeprefix("cannot be made: BadInput: "))
    if args.program and not result["programs"]:
        raise BadInput(f"{case.id} has no program {args.program!r}; without --program, all run")
    _print_failures(result, print, full=True)
    for key, value in result.items():
        if key != "failures":
            print(f"{key}: {value}")
    if args.function and (hollow := _why_hollow(result)):
        print(f"nothing was compared: {hollow}")
        return 1
    return int(result["status"] in _BAD)


def _why_hollow(result: dict[str, Any]) -> str | None:
    """Why equal programs say nothing about a user's own code; None where they do."""
    if result["status"] != "equal":
        return None
    if result["all_raised"]:
        return "each call raised in both ways; call the function by itself to see the error"
    if result.get("ops") == 0:  # ways that count none have no such entry
        return "no tensor op was asked for from the third call on"
    return None


def _check(args: argparse.Namespace) -> None:
    for name in ("workers", "threads"):
        if getattr(args, name) < 1:
            raise BadInput(f"--{name} must be at least 1, not {getattr(args, name)}")
    if args.limit <= 0:
        raise BadInput(f"--limit must be more than 0 seconds, not {args.limit}")
    if args.program and not args.case:
        raise BadInput("--program names a program of a case; give --case as well")
    if args.way not in WAYS:
        raise BadInput(f"there is no way {args.way!r} to run a case; choose from {', '.join(WAYS)}")


def main(argv: list[str]) -> int:
    """Returns 0 where nothing failed, 1 where a case did, 2 on bad input."""
    args = _parser().parse_args(argv)
    # its children are process groups of their own: they end with it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _main(args)
    except BadInput as e:
        print(f"lockstep.coverage: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; go on with --resume", file=sys.stderr)
        return 130


def _main(args: argparse.Namespace) -> int:
    _check(args)
    if args.report:
        from .report import write_reports

        write_reports(args.out)
        return 0
    if args.shrink:
        from .shrinking import shrink_program

        return shrink_program(args.shrink)
    cases = select_cases(args)
    if args.list:
        print("\n".join(c.id for c in cases))
        return 0
    create_way(args.way)
    preload(list({c.source for c in cases}))
    if thread_count() > 1:
        print(f"note: {thread_count()} threads run before the first fork", file=sys.stderr)
    if args.case or args.function:
        return _run_one(args, cases[0])
    done = _run(args, cases, args.way)
    if args.peer == "compile":
        _run(args, cases, "compile-eager")
        _run(args, [c for i, c in enumerate(cases) if i % 20 == 0], "compile-inductor")
    from .report import write_reports

    write_reports(args.out)
    ids = {c.id for c in cases}
    return int(any(r["status"] in _BAD for k, r in done.items() if k in ids))


__all__ = ["main", "read_journal", "reproduce", "select_cases", "stratified"]
