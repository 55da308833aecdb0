"""Doors 7 and 10: kernels written in Python, composites that read raw data, compiled callees."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .world import World, program


@program(repeats=False)
def packed_sequences(w: World):
    lstm, gru = nn.LSTM(8, 5, batch_first=True, bidirectional=True), nn.GRU(8, 5, batch_first=True)
    w.box["lstm"], w.box["gru"] = lstm, gru

    def step(x, y):
        lengths = (y + 1).clamp(max=4)
        seq = x[:, None, :].expand(6, 4, 8) * torch.arange(1.0, 5.0)[None, :, None]
        packed = nn.utils.rnn.pack_padded_sequence(
            seq, lengths, batch_first=True, enforce_sorted=False
        )
        state = (torch.zeros(2, 6, 5), torch.ones(2, 6, 5))
        out, _ = lstm(packed, state)
        padded, sizes = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        g, last = gru(seq)
        loss = w.train(x + padded.mean() + g.mean(), y)
        return loss, sizes, last, [p.grad for p in lstm.parameters()]

    return step


@program
def splits_by_tensors(w: World):
    def step(x, y):
        parts = torch.tensor_split(x, torch.tensor([1, 3]))
        more = torch.tensor_split(x, torch.tensor(2), dim=1)
        repeated = torch.repeat_interleave(x, y, dim=0)
        chunks = x.split([1, 2, 3])
        bags = F.embedding_bag(y, torch.ones(4, 8) * x[0], torch.tensor([0, 2, 5]))
        return w.train(x + more[0].mean(), y), parts, repeated, chunks, bags

    return step


@torch.library.custom_op("lockstep_coverage::scaled_sum", mutates_args=())
def scaled_sum(v: torch.Tensor, k: float) -> torch.Tensor:
    return torch.tensor(v.numpy().sum() * k)


@scaled_sum.register_fake
def _(v, k):
    return v.new_empty(())


@torch.library.custom_op("lockstep_coverage::shift_", mutates_args=("v",))
def shift_(v: torch.Tensor, k: float) -> None:
    v.numpy()[...] += k


@program
def custom_ops_in_python(w: World):
    def step(x, y):
        h = x * 2
        shift_(h, 0.5)
        s = scaled_sum(h, 2.0)
        return w.train(h + s, y), s

    return step


@torch.jit.script
def _scripted(v: torch.Tensor, n: int) -> torch.Tensor:
    for _i in range(n):
        if bool(v.sum() > 0):
            v = v * 0.5
        else:
            v = v + 1
    return v


@program
def scripted_callee(w: World):
    def step(x, y):
        return w.train(_scripted(x, 3), y)

    return step


@program(calls=3)
def compiled_callee(w: World):
    inner = torch.compile(lambda v: torch.tanh(v) * 2, backend="eager")

    def step(x, y):
        return w.train(inner(x), y)

    return step


@program
def losses_with_lengths(w: World):
    head = nn.Linear(8, 5)
    w.box["head"] = head

    def step(x, y):
        logits = head(x)[:, None, :].expand(6, 2, 5).log_softmax(-1)
        loss = F.ctc_loss(logits, torch.tensor([[1, 2], [3, 4]]), (6, 6), (2, 1))
        loss.backward()
        return w.train(x, y), loss, head.weight.grad.clone()

    return step


@program
def transformer_layers(w: World):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    w.box["layer"], w.box["attention"] = layer, attention

    def step(x, y):
        mask = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
        h = layer(x[None], src_mask=mask)
        g, weights = attention(h, h, h)
        return w.train(x + g[0].detach(), y), h, weights

    return step


@program(dense=False)
def sparse_quantized_meta(w: World):
    def step(x, y):
        s = (x * (x > 0)).to_sparse()
        q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        m = torch.empty(3, 4, device="meta") @ torch.empty(4, 2, device="meta")
        nested = torch.nested.nested_tensor([x[:2], x[2:]])
        h = torch.sparse.mm(s, torch.ones(8, 8)) + q.dequantize()
        return w.train(h, y), s, m, nested.unbind()

    return step


@program(dense=False)
def tensor_subclass(w: World):
    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            w.log.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs or {})

    def step(x, y):
        h = x.as_subclass(Named) * 2 + 1
        return w.train(h.as_subclass(torch.Tensor), y), h

    return step


@program
def other_dtypes_and_layouts(w: World):
    conv = nn.Conv2d(2, 3, 3, padding=1).to(memory_format=torch.channels_last)
    w.box["conv"] = conv

    def step(x, y):
        image = x.view(1, 2, 4, 6).to(memory_format=torch.channels_last)
        c = conv(image)
        c.sum().backward()
        b = (x.bfloat16() @ x.bfloat16().T).float()
        d = torch.fft.rfft(x.double()).abs().float()
        empty = x[:0].sum(0) + torch.zeros(0, 8).sum()
        n = (x > 0).int().sum(1) + y
        return w.train(x + b.mean() + d.mean() + empty, y), c, n, torch.linalg.svdvals(x)

    return step
