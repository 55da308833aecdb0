"""Door 1: memory that the outside can see or change (numpy, DLPack, raw pointers, copies)."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle

import numpy as np
import torch

from .world import World, program


@program
def buffer_overwritten_after_the_op(w: World):
    buffer = np.zeros((6, 8), np.float32)

    def step(x, y):
        buffer[:] = x.numpy()
        t = torch.from_numpy(buffer)
        h = t * 2 + 1
        buffer[:] = 99
        return w.train(h, y), t.sum()

    return step


@program
def numpy_view_of_parameter(w: World):
    kept = w.net[0].weight.detach().numpy()

    def step(x, y):
        loss = w.train(x, y)
        w.log.append(float(kept.sum()))
        later = w.net[3].bias.detach().numpy()
        with torch.no_grad():
            w.net[3].bias.mul_(0.5)
        w.log.append(later.copy())
        return loss

    return step


@program
def raw_pointers(w: World):
    def step(x, y):
        h = x * 3
        pointer = ctypes.cast(h.data_ptr(), ctypes.POINTER(ctypes.c_float))
        w.log.append(pointer[0])
        pointer[1] = 7.0
        g = h.exp()
        h.add_(1)
        w.log.append(pointer[2])
        return w.train(g * 0.01, y), h

    return step


@program
def dlpack(w: World):
    def step(x, y):
        h = x * 2
        array = np.from_dlpack(h)
        h.mul_(3)
        w.log.append(array.copy())
        back = torch.from_dlpack(h + 1)
        back += 1
        return w.train(back, y)

    return step


@program
def storages(w: World):
    def step(x, y):
        h = x + 1
        storage = h.untyped_storage()
        w.log.append((storage.nbytes(), storage[0], storage[5]))
        flat = torch.frombuffer(bytearray(b"\0\0\x80?" * 8), dtype=torch.float32)
        shared = (x * 2).share_memory_()
        shared.add_(1)
        return w.train(h + flat + shared, y), shared.is_shared()

    return step


@program
def buffer_protocol(w: World):
    memory = bytearray(6 * 8 * 4)

    def step(x, y):
        t = torch.frombuffer(memory, dtype=torch.float32).view(6, 8)
        t.copy_(x)
        t.mul_(2)
        w.log.append(bytes(memory[:16]))
        memory[0:4] = b"\0\0\0\0"
        return w.train(t + 1, y)

    return step


@program
def reads_of_every_kind(w: World):
    def step(x, y):
        h = x.sum(1)
        one = h[0]
        w.log.append((h.tolist(), one.item(), float(one), int(one), bool(one), len(h)))
        w.log.append(np.asarray(h).sum())
        w.log.append(h.numpy().copy())
        w.log.append(("a", "b", "c", "d")[y[0]])
        w.log.append(list(range(5))[: int(y.max()) + 1])
        w.log.append(complex(one) + round(one.item(), 3))
        w.log.append(1.0 in h)
        w.log.append(h.__array__().shape)
        w.log.append(torch.is_nonzero(one))
        w.log.append((h.equal(h), torch.allclose(h, h)))
        return w.train(x, y)

    return step


@program
def reads_of_pending_parameters(w: World):
    def step(x, y):
        loss = w.train(x, y)
        bias = w.net[3].bias
        part = bias[1:3]
        w.log.append((bias.tolist(), part.detach().numpy().copy(), bias[0].item(), f"{bias}"))
        return loss, bias.detach().clone()

    return step


@program
def copies_and_files(w: World):
    def step(x, y):
        loss = w.train(x, y)
        h = x * 2
        twin = copy.deepcopy(w.net)
        shallow = copy.copy(h)
        again = pickle.loads(pickle.dumps(h))
        file = io.BytesIO()
        torch.save({"net": w.net.state_dict(), "h": h}, file)
        h.add_(1)
        loaded = torch.load(io.BytesIO(file.getvalue()))
        return loss, list(twin.parameters()), shallow, again, loaded

    return step


@program
def save_and_resume(w: World):
    def step(x, y):
        loss = w.train(x, y)
        state = copy.deepcopy((w.net.state_dict(), w.optimizer.state_dict()))
        w.train(x, y)
        w.net.load_state_dict(state[0])
        w.optimizer.load_state_dict(state[1])
        return loss, w.train(x, y)

    return step
