"""Measures the samples eagerly and in lockstep, side by side; see README.md beside this file.

python bench/run.py                                    all programs, all parts
python bench/run.py --programs bert_cls --parts interleaved
"""

import argparse
import contextlib
import json
import os
import platform
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from bench_report import markdown  # noqa: E402
from bench_variants import OPTIONAL, OWN_PROCESS, USUAL, balanced_order, environment  # noqa: E402

NAMES = (
    "bert_qa bert_cls gpt2 music_transformer resnet50 dcgan dropblock sdpoint wgan_gp yolov3 "
    "faster_rcnn lstm_ragged moe tree_lstm actor_critic small_mlp pointwise_chain"
).split()
IDLE = 0.05  # of the processors: more than that disturbs what is measured
PARTS = ("interleaved", "alone", "memory", "first", "fast")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", nargs="*", default=NAMES, choices=NAMES, metavar="NAME")
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS, metavar="PART")
    parser.add_argument("--columns", nargs="*", default=[], choices=list(OPTIONAL))
    parser.add_argument("--size", default="bench", choices=("small", "bench"))
    parser.add_argument("--numerics", default="strict")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--warm-up",
        type=int,
        default=20,
        help="steps before the first run, and at least 3 s of them",
    )
    parser.add_argument("--runs", type=int, default=5, help="runs, of which medians are paired")
    parser.add_argument("--run-seconds", type=float, default=2.0, help="of one variant in one run")
    parser.add_argument("--memory-steps", type=int, default=8)
    parser.add_argument("--processes", type=int, default=10, help="fresh processes for first calls")
    parser.add_argument(
        "--fast-seconds", type=float, default=14.0, help="in which steps become fast, and settle"
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="processes beside it that each want a core all the time"
    )
    parser.add_argument("--limit", type=float, default=1800, help="seconds for one process")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--name", default=time.strftime("%Y-%m-%d-%H%M%S"), help="of the results")
    return parser.parse_args()


def processor_ticks():
    """(busy, all) ticks of all processors since they began."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def busy_share(seconds=1.0):
    """What part of the processors other programs use just now, while this one sleeps."""
    busy, total = processor_ticks()
    time.sleep(seconds)
    busy_then, total_then = processor_ticks()
    return (busy_then - busy) / max(1, total_then - total)


def core_distance():
    """Nanoseconds from one core to another (core_distance.cpp); None where that was not built."""
    tool = HERE.parent / "build" / "lockstep_bench_core_distance"
    if not tool.exists():
        return None
    return json.loads(subprocess.run([tool], capture_output=True, text=True, check=True).stdout)


def machine():
    """What the figures depend on, for the head of the report."""
    import torch

    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":")[1].strip()
            break
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
    ).stdout.strip()
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit,
        "load_before": os.getloadavg()[0],
        "busy_before": round(busy_share(), 2),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def worker_command(arguments, part, program, variants):
    task = {
        "part": part,
        "program": program,
        "variants": variants,
        "size": arguments.size,
        "seed": arguments.seed,
        "numerics": arguments.numerics,
        "warm_up": arguments.warm_up,
        "runs": arguments.runs,
        "run_seconds": arguments.run_seconds,
        "memory_steps": arguments.memory_steps,
        "processes": arguments.processes,
        "fast_seconds": arguments.fast_seconds,
    }
    return [sys.executable, str(HERE / "bench_worker.py"), json.dumps(task)]


def last_words(errors):
    """The end of what a process said, without where this repository lies."""
    return errors.replace(f"{HERE.parent}/", "").strip()[-600:]


def answer_of(command, variables, limit):
    """What a worker says in its last line, or {"error": its last words}."""
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=limit)
        if done.returncode == 0:
            return json.loads(done.stdout.strip().splitlines()[-1])
        return {"error": f"status {done.returncode}: " + last_words(done.stderr)}
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {limit} s"}


def ask(arguments, part, program, variants, cache=None):
    """The worker's answer, or {"error": why there is none}."""
    command = worker_command(arguments, part, program, variants)
    try:
        return answer_of(command, environment(variants[0], cache), arguments.limit)
    except FileNotFoundError as error:
        return {"error": str(error)}


class Alone:
    """A process that runs one variant, when it is told to.

    It says {"steps": how many make a run}, then answers each such line with figures of a run, and
    says its last figures when its input ends.
    """

    def __init__(self, command, variables, limit):
        self._errors = tempfile.TemporaryFile(mode="w+")
        self._limit = limit
        self._process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.steps = self._answer()["steps"]  # of a run, as fast as it is

    def _answer(self):
        if not select.select([self._process.stdout], [], [], self._limit)[0]:
            self._process.kill()
            raise RuntimeError(f"no end after {self._limit} s")
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._errors.seek(0)
        raise RuntimeError(f"status {self._process.wait()}: {last_words(self._errors.read())}")

    def run(self, steps):
        self._process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def finish(self):
        self._process.stdin.close()
        return self._answer()


def measure_alone(variants, start, run_count):
    """Each variant in a process of its own, the Alone of `start(variant)`; the processes take
    turns, the others wait meanwhile.
    """
    answer, processes = {}, {}
    for variant in variants:
        try:
            processes[variant] = start(variant)
        except (RuntimeError, FileNotFoundError) as error:
            answer[variant] = {"error": str(error)}
    steps = min((process.steps for process in processes.values()), default=0)
    runs = {variant: [] for variant in processes}
    distance = core_distance()
    for index in range(run_count):
        for variant in balanced_order(list(processes), index):
            try:
                processes[variant].run(max(2, steps // 20))  # wakes its threads, fills the caches
                before, run = distance, processes[variant].run(steps)
                distance = core_distance()
                runs[variant].append({**run, "core_ns": [before, distance]})
            except RuntimeError as error:
                answer[variant] = {"error": str(error)}
                del processes[variant]
    for variant, process in processes.items():
        try:
            answer[variant] = {"variants": {variant: {"runs": runs[variant], **process.finish()}}}
        except RuntimeError as error:
            answer[variant] = {"error": str(error)}
    return answer


def measure_fast(arguments, program):
    """Until the first fast step: a process that knows nothing, and one with what that left."""
    with tempfile.TemporaryDirectory(prefix="bench-lockstep-") as cache:
        return {
            name: ask(arguments, "fast", program, ["auto"], cache) for name in ("empty", "filled")
        }


def measure(arguments, program):
    """All parts of one program."""
    extra = [name for column in arguments.columns for name in OPTIONAL[column]]
    result = {}

    def start(variant):
        command = worker_command(arguments, "serve", program, [variant])
        return Alone(command, environment(variant), arguments.limit)

    if "interleaved" in arguments.parts:
        result["interleaved"] = ask(arguments, "times", program, list(USUAL))
    if "alone" in arguments.parts:
        result["alone"] = measure_alone((*USUAL, *extra), start, arguments.runs)
    elif extra:
        names = ("eager_a", *(name for name in extra if name in OWN_PROCESS))
        result["alone"] = measure_alone(names, start, arguments.runs)
    if "memory" in arguments.parts:
        result["memory"] = {
            part: {v: ask(arguments, part, program, [v]) for v in ("eager_a", "always")}
            for part in ("live", "rss")
        }
    if "first" in arguments.parts:
        result["first"] = ask(arguments, "first", program, ["eager_a", "always"])
    if "fast" in arguments.parts:
        result["fast"] = measure_fast(arguments, program)
    return result


@contextlib.contextmanager
def scratch_folder():
    """What is written to temporary folders meanwhile, caches above all, is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-lockstep-") as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            yield
        finally:
            tempfile.tempdir = before


@contextlib.contextmanager
def neighbours(count):
    """Processes that compute all the time, as workers of a DataLoader may."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    about = {**machine(), "busy_neighbours": arguments.busy}
    if about["busy_before"] > IDLE:
        message = "other programs use {:.0%} of the processors: the figures will say little"
        print(message.format(about["busy_before"]), file=sys.stderr)
    results = {"machine": about, "options": {**vars(arguments), "out": ""}, "programs": {}}
    for number, program in enumerate(arguments.programs, 1):
        began = time.monotonic()
        print(f"[{number}/{len(arguments.programs)}] {program}", end=" ", flush=True)
        with neighbours(arguments.busy), scratch_folder():
            results["programs"][program] = measure(arguments, program)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
        # Written after each program: what was measured is kept if a later one fails.
        path = arguments.out / f"{arguments.name}.json"
        path.write_text(json.dumps(results, indent=1, default=str))
        path.with_suffix(".md").write_text(markdown(results))
    print(markdown(results))
    print(f"written: {path.with_suffix('.json').name}, {path.with_suffix('.md').name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
