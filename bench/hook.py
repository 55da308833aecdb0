"""What interception itself costs: of the leading thread for an op, of the runner for an event.

    eager     a chain of tiny ops, run eagerly
    lockstep  the same in lockstep, with the wait at the end of the call
    skeleton  the whole call with kernels replaced by nothing and the runner on the leading thread
              (`runner="inplace"`): Python, autograd, hook and runner
    hook      from entry into the hook to its return, without kernels that run there and waiting
    runner    the runner's own time for an event, with kernels replaced by nothing

all in microseconds for an op. The last two are read from the time stamp counter, in a pass of their
own, with the runner behind, as it is used.
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
        x = x.detach()
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


def decorated(function, **options):
    def body(x):  # the same function may be decorated twice
        return function(x)

    return lockstep.function(body, when="always", numerics="strict", **options)


def call_often(function, repeats):
    """Seconds of each call."""
    seconds = []
    for _ in range(repeats):
        x = torch.ones(16, 32)  # too large to be computed at once, by whoever asks
        began = time.perf_counter()
        function(x)
        seconds.append(time.perf_counter() - began)
    return seconds


def measure_skeleton(function, repeats):
    """Median seconds of a call on one thread without kernels."""
    step = decorated(function, runner="inplace")
    call_often(step, WARM_UP)
    lockstep._C.skip_kernels(True)
    try:
        return statistics.median(call_often(step, repeats))
    finally:
        lockstep._C.skip_kernels(False)


def measure_parts(step, repeats, skip_kernels):
    """Seconds an op in the hook, and seconds an event in the runner."""
    lockstep._C.skip_kernels(skip_kernels)
    lockstep._C.time_skeleton(True)
    try:
        call_often(step, repeats)
        times = lockstep._C.skeleton_times()
    finally:
        lockstep._C.time_skeleton(False)
        lockstep._C.skip_kernels(False)
    return [seconds / max(1, count) for count, seconds in (times["hook"], times["runner"])]


def measure(name, repeats):
    function, count = CASES[name]
    step = decorated(function)
    call_often(step, WARM_UP)
    lockstep.reset_stats(step)
    whole = call_often(step, repeats)
    stats = lockstep.stats(step)
    count = count or stats["ops"] / repeats
    return {
        "case": name,
        "ops a call": count,
        "graph share": stats["graph_ops"] / max(1, stats["ops"]),
        "eager": statistics.median(call_often(function, repeats)) / count * 1e6,
        "lockstep": statistics.median(whole) / count * 1e6,
        "skeleton": measure_skeleton(function, repeats) / count * 1e6,
        "hook": measure_parts(step, repeats, skip_kernels=False)[0] * 1e6,
        "runner": measure_parts(step, repeats, skip_kernels=True)[1] * 1e6,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
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
