"""Measures in a fresh process: `python bench_worker.py TASK`, TASK and the answer are JSON.

Parts: `times` (any number of variants, interleaved), `first` (the first call of one variant),
`live` (peak bytes of live tensor storages), `rss` (peak resident memory over that after import).
The answer is the last line on standard output.
"""

import gc
import json
import sys
import time

import torch
from bench_programs import make
from bench_variants import VARIANTS

from samples.common.compare import differences
from samples.common.driver import Copy

MIN_STEPS, MAX_STEPS = 5, 200


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

    The order turns from round to round, so that no variant always follows the same one.
    """
    copies = {name: make_copy(task, name) for name in task["variants"]}
    names = list(copies)
    index = 0
    for index in range(task["warm_up"]):
        for name in names:
            copies[name].advance(index)
    recent = max(statistics(copy.seconds[-5:])["median"] for copy in copies.values())
    steps = max(MIN_STEPS, min(MAX_STEPS, int(task["run_seconds"] / recent)))
    answer = {name: {"runs": []} for name in names}
    for _ in range(task["runs"]):
        gc.collect()
        began = len(copies[names[0]].seconds)
        for _ in range(steps):
            index += 1
            names = names[1:] + names[:1]
            for name in names:
                copies[name].advance(index)
        for name in names:
            answer[name]["runs"].append(statistics(copies[name].seconds[began:]))
    reference = copies[task["variants"][0]].state()
    for name, copy in copies.items():
        fast_s, fast_steps = first_fast(copy.seconds)
        answer[name] |= {"first_fast_s": fast_s, "first_fast_steps": fast_steps}
        answer[name]["first_step_s"] = copy.seconds[0]
        answer[name]["differences"] = differences(reference, copy.state())[:5]
        answer[name]["stats"] = stats_of(copy.step) if name in ("always", "auto") else {}
    return {"steps_a_run": steps, "variants": answer}


def stats_of(step):
    import lockstep

    kept = {**lockstep.stats(step), "auto": lockstep.explain(step).to_dict()["auto"]}
    return {k: v for k, v in kept.items() if isinstance(v, (int, float, str, dict))}


def measure_first(task):
    copy = make_copy(task, task["variants"][0])
    copy.advance(0)
    return {"seconds": copy.seconds[0]}


def measure_live(task):
    """Peak bytes of live storages and workspaces: of Lockstep's allocator and of PyTorch's.

    The report adds the two peaks, which is never less than the peak of the sum. PyTorch's are
    counted from the profiler's allocation events, which cost memory themselves: that is why
    resident memory is measured in another process.
    """
    counters = reset_peak()
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    )
    with profiler:
        copy = make_copy(task, task["variants"][0])
        for index in range(task["memory_steps"]):
            copy.advance(index)
    peak = 0
    for event in walk(profiler.profiler.kineto_results.experimental_event_tree()):
        fields = event.extra_fields
        if type(fields).__name__ == "_ExtraFields_Allocation":
            peak = max(peak, fields.total_allocated)
    return {"torch_peak_bytes": peak, "lockstep_peak_bytes": counters()}


def walk(events):
    todo = list(events)
    while todo:
        event = todo.pop()
        yield event
        todo.extend(event.children)


def reset_peak():
    """A function that gives the peak bytes of Lockstep's own allocator from now on."""
    import lockstep

    library = getattr(lockstep, "_C", None)
    if not hasattr(library, "memory_statistics"):
        return lambda: 0
    library.reset_memory_peak()
    return lambda: library.memory_statistics()["peak_used_bytes"]


def status_bytes(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def measure_rss(task):
    before = status_bytes("VmRSS")
    copy = make_copy(task, task["variants"][0])
    for index in range(task["memory_steps"]):
        copy.advance(index)
    return {"after_import_bytes": before, "peak_bytes": status_bytes("VmHWM") - before}


PARTS = {
    "times": measure_times,
    "first": measure_first,
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
