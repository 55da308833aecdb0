"""Measures in a fresh process: `python bench_worker.py TASK`, TASK and the answer are JSON.

Parts: `times` (any number of variants, interleaved), `serve` (one variant, runs when asked for),
`first` (first calls, in fresh processes), `fast` (how long until steps are as fast as they get),
`live` (peak bytes of live tensor storages), `rss` (peak resident memory over that after import).
The answer is the last line on standard output.
"""

import gc
import json
import os
import sys
import time

from bench_programs import load, make
from bench_variants import VARIANTS, balanced_order

from samples.common.compare import differences
from samples.common.driver import Copy

MIN_STEPS, MAX_STEPS = 5, 2000
MIN_FAST_STEPS = 20
WARM_UP_SECONDS = 3


def make_copy(task, variant):
    """A copy of the program with random streams of its own; its step runs as `variant` says."""
    copy = Copy(lambda size, seed: make(task["program"], size, seed), task["size"], task["seed"])
    copy.step = VARIANTS[variant](copy.program, copy.program.step, task)
    return copy


def statistics(seconds):
    ordered = sorted(seconds)
    pick = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]  # noqa: E731
    return {"median": pick(0.5), "p10": pick(0.1), "p90": pick(0.9)}


def first_fast(seconds):
    """(seconds, steps) until the median of five steps is within 10 % of the steady state."""
    steady = statistics(seconds[len(seconds) // 2 :])["median"]
    for end in range(5, len(seconds) + 1):
        if statistics(seconds[end - 5 : end])["median"] <= 1.1 * steady:
            return sum(seconds[: end - 4]), end - 4
    return sum(seconds), len(seconds)


def measure_times(task):
    """Step times of all variants of the task, one step each in turn, in runs.

    In which order they take turns changes: each follows each other one equally often.
    """
    copies = {name: make_copy(task, name) for name in task["variants"]}
    names = list(copies)
    index = warm_up(task, copies) - 1
    steps = min(steps_of_a_run(task, copy) for copy in copies.values())
    answer = {name: {"runs": []} for name in names}
    for _ in range(task["runs"]):
        gc.collect()
        began = len(copies[names[0]].seconds)
        for _ in range(steps):
            index += 1
            for name in balanced_order(names, index):
                copies[name].advance(index)
        for name in names:
            answer[name]["runs"].append(statistics(copies[name].seconds[began:]))
    reference = copies[task["variants"][0]].state()
    for name, copy in copies.items():
        answer[name] |= figures_of(name, copy)
        answer[name]["differences"] = differences(reference, copy.state())[:5]
    return {"steps_a_run": steps, "variants": answer}


def warm_up(task, copies):
    """As many steps as the task wants, and of short ones so many as take some seconds: what is
    measured first, and compiled beside the run, is there by then. Returns how many.
    """
    wanted = task["warm_up"]
    end = time.monotonic() + (WARM_UP_SECONDS * len(copies) if wanted else 0)
    index = 0
    while index < wanted or time.monotonic() < end:
        for copy in copies.values():
            copy.advance(index)
        index += 1
    return index


def steps_of_a_run(task, copy):
    recent = statistics(copy.seconds[-5:])["median"]
    return max(MIN_STEPS, min(MAX_STEPS, int(task["run_seconds"] / recent)))


def figures_of(name, copy):
    """What is said of a variant besides its runs."""
    fast_s, fast_steps = first_fast(copy.seconds)
    return {
        "first_step_s": copy.seconds[0],
        "first_fast_s": fast_s,
        "first_fast_steps": fast_steps,
        "stats": stats_of(copy.step) if name in ("always", "auto") else {},
    }


def serve(task):
    """Steps of one variant in this process, a run whenever a line on standard input asks for one.

    So the processes of several variants can take turns: what the machine does meanwhile meets all.
    """
    (name,) = task["variants"]
    copy = make_copy(task, name)
    index = warm_up(task, {name: copy})
    print(json.dumps({"steps": steps_of_a_run(task, copy)}), flush=True)
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        for _ in range(steps):
            copy.advance(index)
            index += 1
        print(json.dumps(statistics(copy.seconds[-steps:])), flush=True)
    return figures_of(name, copy)


def stats_of(step):
    import lockstep

    kept = {**lockstep.stats(step), "auto": lockstep.explain(step).to_dict()["auto"]}
    return {k: v for k, v in kept.items() if isinstance(v, (int, float, str, dict))}


def measure_first(task):
    """Seconds of the first call of each variant, in turn, each in a fresh process.

    The processes are forked from this one, which has imported everything and computed nothing.
    """
    import lockstep  # noqa: F401

    load(task["program"])
    answer = {name: [] for name in task["variants"]}
    for _ in range(task["processes"]):
        for name in task["variants"]:
            answer[name].append(in_fork(first_call, task, name))
    return {"variants": answer}


def first_call(task, variant):
    copy = make_copy(task, variant)
    copy.advance(0)
    return copy.seconds[0]


def measure_fast(task):
    (name,) = task["variants"]
    load(task["program"])
    copy = make_copy(task, name)
    end = time.monotonic() + task["fast_seconds"]
    while time.monotonic() < end or len(copy.seconds) < MIN_FAST_STEPS:
        copy.advance(len(copy.seconds))
    return {**figures_of(name, copy), "steady": statistics(copy.seconds[len(copy.seconds) // 2 :])}


def in_fork(function, *arguments):
    """What the function returns, a float, called in a child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, repr(function(*arguments)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"{function.__name__}{arguments} failed in its process")
    return float(text)


def measure_live(task):
    """Peak bytes that live tensors and workspaces of kernels have asked the allocator for.

    Lockstep's allocator stands in front of PyTorch's in both variants and counts for both. Counting
    costs memory itself: that is why resident memory is measured in another process.
    """
    import lockstep

    lockstep._C.count_memory(True)
    copy = make_copy(task, task["variants"][0])
    for index in range(task["memory_steps"]):
        copy.advance(index)
    return {"peak_bytes": lockstep._C.memory_count()["peak_bytes"]}


def status_bytes(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def measure_rss(task):
    import lockstep  # noqa: F401 - of both variants, so that both have imported the same

    before = status_bytes("VmRSS")
    copy = make_copy(task, task["variants"][0])
    for index in range(task["memory_steps"]):
        copy.advance(index)
    return {"after_import_bytes": before, "peak_bytes": status_bytes("VmHWM") - before}


PARTS = {
    "times": measure_times,
    "serve": serve,
    "first": measure_first,
    "fast": measure_fast,
    "live": measure_live,
    "rss": measure_rss,
}


def main():
    task = json.loads(sys.argv[1])
    began = time.monotonic()
    answer = PARTS[task["part"]](task)
    answer["wall_s"] = time.monotonic() - began
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
