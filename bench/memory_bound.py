"""Memory-bound ops as programs ask for them: bytes a second in eager, by Inductor and by Lockstep.

Data does not fit the cache. Traffic is the least that the ops need: what they read and what
somebody holds afterwards, once each; batch norm's input twice. Each way has a process of its own,
and the processes take turns with a copy: the best of PyTorch's own and of glibc's with
non-temporal stores. Memory is kept by the allocator in all of them, so that kernels are measured
and not page faults.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE.parent / "python"):
    sys.path.insert(0, str(folder))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

aten = torch.ops.aten
WAYS = ("copy", "eager", "inductor", "lockstep")
WARM_UP_SECONDS, WARM_UP_CALLS, CALLS = 4, 12, 3


def layer_norm(x):
    w, b = torch.randn(2, x.shape[1]).unbind()
    return lambda: aten.native_layer_norm(x, x.shape[1:], w, b, 1e-5), 8


def layer_norm_backward(x):
    w, b = torch.randn(2, x.shape[1]).unbind()
    g, (_, mean, rstd) = torch.randn_like(x), aten.native_layer_norm(x, x.shape[1:], w, b, 1e-5)
    mask = [True, True, True]
    return lambda: aten.native_layer_norm_backward(g, x, x.shape[1:], mean, rstd, w, b, mask), 12


def softmax(x):
    return lambda: F.softmax(x, 1), 8


def softmax_backward(x):
    g, y = torch.randn_like(x), F.softmax(x, 1)
    return lambda: aten._softmax_backward_data(g, y, 1, torch.float32), 12


def gelu(x):
    b, r = torch.randn(x.shape[1]), torch.randn_like(x)
    return lambda: F.gelu(x + b) + r, 12


def dropout(x):
    b, r = torch.randn(x.shape[1]), torch.randn_like(x)
    return lambda: F.dropout(x + b, 0.1) + r, 12


def cross_entropy(x):
    """What autograd holds is held here: the log-probabilities."""
    t = torch.randint(x.shape[1], (x.shape[0],))

    def step():
        logs = F.log_softmax(x, 1)
        return logs, F.nll_loss(logs, t)

    return step, 8


def cross_entropy_backward(x):
    t = torch.randint(x.shape[1], (x.shape[0],))
    logs, one = F.log_softmax(x, 1), torch.ones(())
    count = torch.tensor(float(x.shape[0]))

    def step():
        g = aten.nll_loss_backward(one, logs, t, None, 1, -100, count)
        return aten._log_softmax_backward_data(g, logs, 1, torch.float32)

    return step, 8


def images(x):
    n = x.numel() // (64 * 56 * 56)
    return x.flatten()[: n * 64 * 56 * 56].view(n, 64, 56, 56)


def batch_norm(x):
    x = images(x)
    w, b, mean, var = (torch.rand(64) for _ in range(4))  # statistics in memory of their own
    return lambda: aten.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5), 12


def batch_norm_backward(x):
    """The gradient of the input needs two passes over both operands."""
    x = images(x)
    w, mean, var = (torch.rand(64) for _ in range(3))
    g, (_, m, r) = torch.randn_like(x), aten.native_batch_norm(x, w, w, mean, var, True, 0.1, 1e-5)
    mask = [True, True, True]
    return lambda: aten.native_batch_norm_backward(g, x, w, mean, var, m, r, True, 1e-5, mask), 20


def adam(x):
    """Half as many parameters, since each is seven words of traffic: 28 bytes."""
    parameters = [p.clone().requires_grad_() for p in x.flatten()[: x.numel() // 2].chunk(8)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.Adam(parameters)
    return optimizer.step, 14


# name -> (make, length of the last dim)
CASES = {
    "layer norm [256]": (layer_norm, 256),
    "layer norm [1024]": (layer_norm, 1024),
    "layer norm backward [1024]": (layer_norm_backward, 1024),
    "softmax [128]": (softmax, 128),
    "softmax [1024]": (softmax, 1024),
    "softmax backward [1024]": (softmax_backward, 1024),
    "bias + GELU + residual [1024]": (gelu, 1024),
    "bias + dropout + residual [1024]": (dropout, 1024),
    "cross entropy [1024]": (cross_entropy, 1024),
    "cross entropy [32768]": (cross_entropy, 32768),
    "cross entropy backward [1024]": (cross_entropy_backward, 1024),
    "batch norm [56x56]": (batch_norm, 1024),
    "batch norm backward [56x56]": (batch_norm_backward, 1024),
    "Adam": (adam, 1024),
}


def copies(x):
    """The best of two copies, and the bytes a value of each."""
    y = torch.zeros_like(x)
    threads, size = torch.get_num_threads(), 4 * x.numel() // torch.get_num_threads()
    pool = ThreadPoolExecutor(threads)

    def part(i):
        ctypes.memmove(y.data_ptr() + i * size, x.data_ptr() + i * size, size)

    return (lambda: y.copy_(x), lambda: list(pool.map(part, range(threads)))), 8


def decorate(step, way):
    if way == "inductor":
        return torch.compile(step)
    if way == "lockstep":
        import lockstep

        return lockstep.function(step, when="always", runner="inplace", numerics="default")
    return step


def best_seconds(step):
    best = float("inf")
    for _ in range(CALLS):
        began = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - began)
    return best


@torch.no_grad()
def work(case, way, values):
    """Bytes a second of the best of a few calls, whenever a line comes in."""
    make, width = CASES[case]
    x = torch.randn(values // width, width)
    if way == "copy":
        steps, bytes_a_value = copies(x)
    else:
        step, bytes_a_value = make(x)
        steps = (decorate(step, way),)
    began, count = time.perf_counter(), 0
    while (
        count < WARM_UP_CALLS or way == "lockstep" and time.perf_counter() - began < WARM_UP_SECONDS
    ):
        for step in steps:
            step()
        count += 1
    print("ready", flush=True)
    for _ in sys.stdin:
        print(values * bytes_a_value / min(map(best_seconds, steps)), flush=True)


def start(case, way, threads, values):
    variables = {
        **os.environ,
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x400000",
        "OMP_NUM_THREADS": str(threads),
        "LOCKSTEP_CACHE": tempfile.mkdtemp(prefix="bench-lockstep-"),
        "TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(prefix="bench-inductor-"),
    }
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker", case, way, "--values", str(values)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
    )
    if process.stdout.readline().strip() != "ready":
        raise RuntimeError(f"{case} by {way} failed: see above")
    return process


def measure(case, threads, values, rounds):
    """GB/s of each way: the best of all rounds, since others on the host only take away."""
    processes = {way: start(case, way, threads, values) for way in WAYS}
    rates = dict.fromkeys(WAYS, 0.0)
    for _ in range(rounds):
        for way, process in processes.items():
            process.stdin.write("\n")
            process.stdin.flush()
            rates[way] = max(rates[way], float(process.stdout.readline()) / 1e9)
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--values", type=int, default=1 << 25, help="float32 of the main tensor")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(*arguments.worker, arguments.values)
    rows = []
    print("| case | threads |" + "".join(f" {way} GB/s |" for way in WAYS) + " of copy |")
    print("|---|" + "---|" * (len(WAYS) + 2))
    for threads in arguments.threads:
        for case in arguments.cases:
            rates = measure(case, threads, arguments.values, arguments.rounds)
            share = rates["lockstep"] / rates["copy"]
            cells = "".join(f" {rates[way]:.1f} |" for way in WAYS)
            print(f"| {case} | {threads} |{cells} {share:.0%} |", flush=True)
            rows.append({"case": case, "threads": threads, **rates})
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
