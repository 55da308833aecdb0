"""Doors 5, 6, 7 and 11: other threads, fork, the GIL and signals, the interpreter's end."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

from .world import World, program


@program
def pending_tensor_read_by_a_thread(w: World):
    def step(x, y):
        h = x
        for _ in range(10):
            h = torch.sin(h) + x
        got = []
        t = threading.Thread(target=lambda: got.append((h * 2).sum().item()))
        t.start()
        t.join()
        w.log.append(got)
        return w.train(h, y)

    return step


@program
def pool_and_queue(w: World):
    def step(x, y):
        box = queue.Queue()
        h = x * 3
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(lambda i: (h[i] + i).tolist(), range(3)))
            pool.submit(box.put, h.exp()).result()
        w.log.append(parts)
        return w.train(h, y), box.get()

    return step


@program
def backward_in_a_thread(w: World):
    def step(x, y):
        loss = F.cross_entropy(w.net(x), y)
        w.optimizer.zero_grad()
        t = threading.Thread(target=loss.backward)
        t.start()
        t.join()
        w.optimizer.step()
        return loss

    return step


@program
def fork_in_the_step(w: World):
    def step(x, y):
        h = x * 2
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, repr(h.sum().item()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(write)
        w.log.append(os.read(read, 100))
        os.close(read)
        return w.train(h, y)

    return step


class _Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.full((8,), float(i)) * 2, i % 4


@program(calls=3, repeats=False)  # the second batch may arrive before the first
def loader_with_workers(w: World):
    def step(x, y):
        losses = []
        loader = torch.utils.data.DataLoader(_Rows(), batch_size=3, num_workers=2, shuffle=True)
        for a, b in loader:
            losses.append(w.train(a + x[:3], b).item())
        return losses

    return step


@program
def signal_handlers(w: World):
    def step(x, y):
        def handler(number, frame):
            w.log.append(("signal", torch.ones(2).sum().item()))

        before = signal.signal(signal.SIGUSR2, handler)
        try:
            h = x * 2
            signal.raise_signal(signal.SIGUSR2)
            h = h + 1
        finally:
            signal.signal(signal.SIGUSR2, before)
        return w.train(h, y)

    return step


@program
def finalizers(w: World):
    class Closing:
        def __init__(self, t):
            self.t = t

        def __del__(self):
            w.log.append(self.t.sum().item())

    def step(x, y):
        a = Closing(x * 2)
        h = x + 1
        del a
        b = Closing(h)
        b.self = None
        return w.train(h, y)

    return step


@program
def entry_with_the_lock_held(w: World):
    def step(x, y):
        h = x * 2
        rows = [h[0], h[1:3], h[-1, ::2], h[y[0]], h[None, ..., 0]]
        g = torch.zeros(6, 8)
        g[2] = h[0]
        g[3:5] = h[0, 0]
        shape = torch.zeros(int(y[0]) + 1, len(h))
        full = torch.full((2,), h[0, 0].item())
        return w.train(g, y), rows, shape, full, torch.arange(float(y[1]) + 1)

    return step


_SCRIPT = """
import torch, sys
torch.manual_seed(0)
net = torch.nn.Linear(8, 4)
x = torch.randn(6, 8)
if {lockstep}:
    import lockstep
def step(v):
    for _ in range(20):
        v = torch.tanh(net(v)) @ torch.ones(4, 8)
    return v
f = lockstep.function(step, when="always") if {lockstep} else step
for i in range(4):
    out = f(x)
print(out.sum().item())
sys.stdout.flush()
if {lockstep}:
    s = lockstep.session()
    s.__enter__()
pending = step(out)
"""


@program(calls=3, repeats=False)
def interpreter_exit_with_work_pending(w: World):
    with_lockstep = os.environ.get("LOCKSTEP_COVERAGE_WAY") == "strict"

    def step(x, y):
        w.box["n"] = w.box.get("n", 0) + 1
        if w.box["n"] < 3:
            return w.train(x, y)
        script = _SCRIPT.format(lockstep=with_lockstep)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        return w.train(x, y), done.returncode, done.stdout

    return step
