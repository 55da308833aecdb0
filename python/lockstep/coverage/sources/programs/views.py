"""Views, aliases, in-place changes, metadata that changes, tensors that change their memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .world import World, program


@program
def writes_through_views(w: World):
    def step(x, y):
        base = x.clone()
        row, column, block = base[1], base[:, 2], base.view(3, 16)[1:, ::3]
        row.mul_(2)
        column.add_(row.sum())
        block.zero_()
        base.t()[0].copy_(torch.arange(6.0))
        flat = base.view(-1)
        flat[::7] = -1
        base.diagonal().fill_(3)
        torch.add(base, 1, out=base[:, :])
        return w.train(base, y), row, column, block, flat

    return step


@program
def metadata_in_place(w: World):
    def step(x, y):
        h = x.clone()
        h.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1)
        h.swapaxes_(0, 1).t_()
        v = x.clone()
        v.resize_(3, 4)
        s = torch.empty(0)
        s.set_(x.clone())
        s.as_strided_((4, 8), (8, 1))
        return w.train(h, y), v, s

    return step


@program
def views_with_gradients(w: World):
    def step(x, y):
        h = w.net[0](x).clone()
        h[:, :4].mul_(2)
        h[0].add_(1)
        h.view(-1)[3] = 0.5
        loss = F.cross_entropy(w.net[3](torch.tanh(h)), y)
        w.apply(loss)
        return loss

    return step


@program
def data_attribute(w: World):
    def step(x, y):
        loss = w.train(x, y)
        w.net[0].weight.data.mul_(0.99)
        w.net[0].bias.data = w.net[0].bias.data + 0.01
        w.net[3].bias.data[0] = 0.25
        return loss, w.net[0].weight._version

    return step


@program
def outs_and_overlaps(w: World):
    keep = torch.zeros(6, 8)
    w.box["keep"] = keep

    def step(x, y):
        torch.mul(x, 2, out=keep)
        torch.add(keep, x, out=keep)
        values, indices = torch.zeros(6), torch.zeros(6, dtype=torch.long)
        torch.max(x, 1, out=(values, indices))
        keep[1:].copy_(keep[:-1].clone())
        wide = x[0].expand(6, 8)
        return w.train(keep + wide, y), values, indices, wide

    return step


@program
def tied_weights(w: World):
    table = torch.nn.Embedding(4, 8)
    head = torch.nn.Linear(8, 4, bias=False)
    head.weight = table.weight
    optimizer = torch.optim.SGD(list(table.parameters()), 0.1, momentum=0.9, weight_decay=0.01)
    w.box["table"], w.box["optimizer"] = table, optimizer

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(head(table(y) + x), y)
        loss.backward()
        optimizer.step()
        return loss, head.weight is table.weight

    return step


@program
def swapped_tensors(w: World):
    def step(x, y):
        a, b = x * 2, x + 1
        torch.utils.swap_tensors(a, b)
        return w.train(a, y), b

    return step


@program
def identity_and_ids(w: World):
    def step(x, y):
        h = x * 2
        same = h.add_(1)
        w.log.append((same is h, h.contiguous() is h, h.detach() is h, type(h).__name__))
        w.log.append((h.is_contiguous(), h.t().stride(), h._version, h[0]._is_view()))
        w.log.append((h.view(-1)._base is h, x.is_leaf, h.dtype, h.storage_offset()))
        return w.train(h, y), same

    return step


@program
def buffers_and_parameters_that_come_and_go(w: World):
    def step(x, y):
        n = w.box["n"] = w.box.get("n", 0) + 1
        w.net.register_buffer("recent", x.mean(0))
        w.net.extra = torch.nn.Parameter(torch.full((8,), float(n)))
        h = x * w.net.extra + w.net.recent
        loss = F.cross_entropy(w.net[3](torch.tanh(w.net[0](h))), y)
        w.apply(loss)
        grad = w.net.extra.grad
        del w.net.extra
        return loss, grad

    return step


@program
def lazy_flags(w: World):
    def step(x, y):
        z = torch.complex(x, x * 2)
        c = z.conj()
        i = c.imag
        c2 = c.clone()
        c2[0] = 1j
        real = torch.view_as_real(z)
        real[..., 0] += 1
        return w.train(i + z.real, y), c, c2, c.resolve_conj(), z

    return step
