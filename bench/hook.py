"""What interception itself costs: time in the hook for an op, and of the runner for an event.

The counters come from `lockstep.bench_counters()`, a dict of totals since the process began:

    hook_entries, hook_seconds        ops that entered the hook; time from entry to return
    runner_events, runner_seconds     events the runner took; its time without kernels
    leader_seconds                    time on the leading thread inside co-executed calls

A script that runs while they are missing says so, and reports only the whole cost an op: the time
of a chain of tiny ops in lockstep and eagerly, divided by their number.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE.parent / "python"):
    sys.path.insert(0, str(folder))

import lockstep  # noqa: E402
import torch  # noqa: E402

OPS = 500


def chain(x):
    """A forward pass of tiny ops, without autograd."""
    for _ in range(OPS // 2):
        x = x.mul(1.01)
        x = x.add(0.1)
    return x


def views(x):
    """Views, which run natively and are only matched."""
    for _ in range(OPS // 2):
        x = x.t()
        x = x.view(4, 4)
    return x


def in_place(x):
    for _ in range(OPS // 2):
        x.mul_(1.01)
        x.add_(0.1)
    return x


def with_gradients(x):
    """Forward and backward; about three ops for each line."""
    w = x.detach().requires_grad_()
    y = w
    for _ in range(OPS // 5):
        y = torch.tanh(y)
    y.sum().backward()
    return w.grad


CASES = {
    "pointwise": (chain, OPS),
    "views": (views, OPS),
    "in place": (in_place, OPS),
    "forward and backward": (with_gradients, None),
}


def counters():
    read = getattr(lockstep, "bench_counters", None)
    return dict(read()) if read else {}


def time_calls(function, repeats):
    """Median seconds of a call."""
    seconds = []
    for _ in range(repeats):
        x = torch.ones(4, 4)
        began = time.perf_counter()
        function(x)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measure(name, repeats):
    function, count = CASES[name]
    decorated = lockstep.function(function, when="always", numerics="strict")
    time_calls(decorated, 5)
    lockstep.reset_stats(decorated)
    before = counters()
    with_lockstep = time_calls(decorated, repeats)
    after = counters()
    stats = lockstep.stats(decorated)
    count = count or stats["ops"] / repeats
    eager = time_calls(function, repeats)
    row = {
        "case": name,
        "ops_a_call": count,
        "eager_us_an_op": eager / count * 1e6,
        "lockstep_us_an_op": with_lockstep / count * 1e6,
        "graph_share": stats["graph_ops"] / max(1, stats["ops"]),
    }
    for part, events in (("hook", "hook_entries"), ("runner", "runner_events")):
        number = after.get(events, 0) - before.get(events, 0)
        seconds = after.get(f"{part}_seconds", 0.0) - before.get(f"{part}_seconds", 0.0)
        row[f"{part}_us"] = seconds / number * 1e6 if number else None
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    enable = getattr(lockstep, "enable_bench_counters", None)
    if enable:
        enable(True)
    rows = [measure(name, arguments.repeats) for name in CASES]
    columns = list(rows[0])
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()]
        print("| " + " | ".join(cells) + " |")
    if not counters():
        print("lockstep.bench_counters is missing: hook and runner could not be told apart")
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
