"""What interception itself costs: of the leading thread for an op, of the runner for an event.

    eager     a chain of tiny ops, run eagerly
    lockstep  the same in lockstep, with the wait at the end of the call
    asking    only the function's body: Python, autograd, the hook; nothing is computed there
    skeleton  the whole call with kernels replaced by nothing and the runner on the leading thread
              (`runner="inplace"`): Python, autograd, hook and runner

all in microseconds for an op. Where `lockstep.bench_counters()` exists, a dict of totals with
`hook_entries`, `hook_seconds`, `runner_events` and `runner_seconds`, the time from entry into the
hook to its return and the runner's own time stand beside them.
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
WARM_UP = 5


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


def timed(function, **options):
    """The function in lockstep, and the list that takes the seconds of its body."""
    bodies = []

    def body(x):
        began = time.perf_counter()
        result = function(x)
        bodies.append(time.perf_counter() - began)
        return result

    return lockstep.function(body, when="always", numerics="strict", **options), bodies


def call_often(function, repeats):
    """Seconds of each call."""
    seconds = []
    for _ in range(repeats):
        x = torch.ones(4, 4)
        began = time.perf_counter()
        function(x)
        seconds.append(time.perf_counter() - began)
    return seconds


def measure_skeleton(function, repeats):
    """Median seconds of a call on one thread without kernels; None if the build cannot do that."""
    skip = getattr(lockstep._C, "skip_kernels", None)
    if skip is None or "runner" not in lockstep.KNOBS:
        return None
    decorated, _ = timed(function, runner="inplace")
    call_often(decorated, WARM_UP)
    skip(True)
    try:
        return statistics.median(call_often(decorated, repeats))
    finally:
        skip(False)


def measure(name, repeats):
    function, count = CASES[name]
    decorated, bodies = timed(function)
    call_often(decorated, WARM_UP)
    bodies.clear()
    lockstep.reset_stats(decorated)
    before = counters()
    whole = call_often(decorated, repeats)
    after = counters()
    stats = lockstep.stats(decorated)
    count = count or stats["ops"] / repeats
    skeleton = measure_skeleton(function, repeats)
    row = {
        "case": name,
        "ops a call": count,
        "graph share": stats["graph_ops"] / max(1, stats["ops"]),
        "eager": statistics.median(call_often(function, repeats)) / count * 1e6,
        "lockstep": statistics.median(whole) / count * 1e6,
        "asking": statistics.median(bodies) / count * 1e6,
        "skeleton": None if skeleton is None else skeleton / count * 1e6,
    }
    for part, events in (("hook", "hook_entries"), ("runner", "runner_events")):
        number = after.get(events, 0) - before.get(events, 0)
        seconds = after.get(f"{part}_seconds", 0.0) - before.get(f"{part}_seconds", 0.0)
        if number:
            row[f"{part}, counted"] = seconds / number * 1e6
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
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
