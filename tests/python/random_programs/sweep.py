"""Runs many random programs: python sweep.py --count 100000 --start 0 --jobs 1

Chunks of programs run in forked children, so that a crash or a hang costs one program. Each failure
is printed with its seed and with the command that reproduces it; `--shrink` reduces it as well.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import random_compare  # noqa: E402
import random_runner  # noqa: E402
from random_program import program_text  # noqa: E402
from random_runner import check_seeds, check_text  # noqa: E402
from random_shrink import shrink  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=100000, help="number of programs")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--chunk", type=int, default=100, help="programs in one process")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one program")
    parser.add_argument("--stop-after", type=int, default=50, help="failures to stop after")
    parser.add_argument("--shrink", action="store_true", help="reduce each failing program")
    parser.add_argument("--tries", type=int, default=1000, help="runs that one reduction may take")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--failures", type=Path, help="append failures to this file, as JSON lines")
    parser.add_argument(
        "--ignore", action="append", default=[], help="part of a path: not compared"
    )
    parser.add_argument(
        "--without", action="append", default=[], help="skip programs with this text"
    )
    parser.add_argument("--calls", type=int, default=random_runner.CALLS, help="of each program")
    parser.add_argument("--session", action="store_true", help="one session around all calls")
    parser.add_argument("--option", action="append", default=[], metavar="KNOB=VALUE")
    return parser.parse_args()


def options_of(pairs):
    """Knobs for lockstep.function; a number where the text is one."""
    options = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        options[name] = int(value) if value.isdigit() else value
    return options


def wanted(seeds, arguments):
    if not arguments.without:
        return seeds
    return [s for s in seeds if not any(part in program_text(s) for part in arguments.without)]


def command(arguments, seed, alone):
    start, count = (seed, 1) if alone else (arguments.start, seed - arguments.start + 1)
    options = "".join(f" --option {pair}" for pair in arguments.option)
    options += " --session" * arguments.session
    if arguments.calls != 6:
        options += f" --calls {arguments.calls}"
    return f"python {sys.argv[0]} --start {start} --count {count} --chunk {count}{options} --show"


def show_progress(shrinker):
    size = len(shrinker.text.splitlines())
    print(f"\r{size} lines, {shrinker.left} tries left ", end="", file=sys.stderr, flush=True)


def report(arguments, seed, failure, options):
    text = program_text(seed)
    alone = arguments.count == 1 or check_text(text, arguments.calls, options) is not None
    print(f"\nseed {seed}: {failure['kind']}\n{failure['text']}")
    print(f"reproduce: {command(arguments, seed, alone)}", flush=True)
    if not alone:
        print("(alone this program passes: the failure needs the programs before it)")
    if arguments.shrink and alone:
        failure = check_text(text, arguments.calls, options) or failure
        text, calls, failure = shrink(
            text,
            failure,
            arguments.calls,
            options=options,
            tries=arguments.tries,
            progress=show_progress,
        )
        print(f"shrunk, {calls} calls: {failure['text']}")
    if arguments.show or arguments.shrink:
        print(text, flush=True)
    if arguments.failures:
        with arguments.failures.open("a") as out:
            print(json.dumps({"seed": seed, **failure, "program": text}), file=out)


def main():
    arguments = parse_arguments()
    options = options_of(arguments.option) | ({"session": True} if arguments.session else {})
    random_compare.IGNORED += arguments.ignore
    random_runner.CALLS = arguments.calls
    chunks = [
        wanted(
            range(first, min(first + arguments.chunk, arguments.start + arguments.count)), arguments
        )
        for first in range(arguments.start, arguments.start + arguments.count, arguments.chunk)
    ]
    began, passed, failed, stats, stop = time.monotonic(), 0, 0, {}, False

    def run(chunk):
        return [] if stop else list(check_seeds(chunk, options, arguments.timeout, stats))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for results in pool.map(run, chunks):
            for seed, failure in results:
                passed += failure is None
                failed += failure is not None
                if failure and failed <= arguments.stop_after:
                    report(arguments, seed, failure, options)
            stop = failed >= arguments.stop_after
            print(f"{passed} passed, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    share = stats.get("graph_ops", 0) / max(1, stats.get("ops", 0))
    print(f"share of ops run by the graph: {share:.3f}; divergences: {stats.get('divergences', 0)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
