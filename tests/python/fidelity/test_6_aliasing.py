"""Point 6: views, aliasing, in-place work."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net
from expected_reasons import EXPECTED
from kit import Case, check
from torch import nn

item = pytest.mark.item


@item("6.views")
def test_views():
    def make(run):
        weight = nn.Parameter(torch.randn(6, 6))

        def step(x, labels):
            base = busy(x)[:6, :6] * weight
            views = [
                base.T,
                base.view(4, 9),
                base[1::2, ::3],
                base.diagonal(),
                base.unfold(0, 2, 2),
            ]
            views += [
                *base.unbind(0)[:2],
                *base.chunk(3),
                *base.split([1, 5], 1),
                base.expand(2, 6, 6),
            ]
            views += [base.as_strided((3, 3), (6, 2), 1), base.movedim(0, 1), base.unsqueeze(1)]
            views += [base.flatten(), base.narrow(0, 1, 2), base.reshape(-1, 2), base.view_as(base)]
            sum(view.square().sum() for view in views).backward()
            return base, views, torch.view_as_real(torch.complex(base, base))

        return Case(step, batch, weight=weight)

    check(make)


@item("6.aliasing")
def test_the_same_op_with_and_without_aliased_operands():
    def make(run):
        state = torch.randn(6, 6)

        def combine(a, b):
            a.mul_(0.5)
            return (a + b).tanh()

        def step(x, is_aliased, is_overlapping):
            first = busy(x)[:6, :6] + x
            second = first if is_aliased else first * 2
            third = first[1:] if is_overlapping else first[1:].clone()
            out = combine(first, second)
            third.add_(out[:5])
            held = first if is_aliased else state
            held.add_(1)
            return out, first, second, third, held

        return Case(step, lambda n: (torch.randn(6, 6), n % 2 == 0, n % 3 == 0), state=state)

    check(make, calls=12)


def _indices(*sizes):
    return torch.zeros(*sizes, dtype=torch.long)


# What they write, and what they read, which may be the same.
WRITE_SEVERAL = {
    "max": lambda to, x: torch.max(x, 0, out=(to[0], _indices(8))),
    "kthvalue": lambda to, x: torch.kthvalue(x, 3, 0, out=(to[0], _indices(8))),
    "topk": lambda to, x: torch.topk(x, 4, 0, out=(to[:4], _indices(4, 8))),
    "aminmax": lambda to, x: torch.aminmax(x, dim=0, out=(to[0], torch.zeros(8))),
    "sort": lambda to, x: torch.sort(x[:-1], out=(to[1:], _indices(7, 8))),
    "frexp": lambda to, x: torch.frexp(x[:-1], out=(to[1:], torch.zeros(7, 8, dtype=torch.int32))),
    "add lists": lambda to, x: torch._foreach_add_([to[1:], x[0] * 2], [x[:-1], x[1] * 2]),
    "copy lists": lambda to, x: torch._foreach_copy_([to.t(), x[0] * 2], [x, x[1] * 2]),
    "lists that are apart": lambda to, x: torch._foreach_mul_([*to[:4]], [*x[4:]]),
    "lists of the same": lambda to, x: torch._foreach_mul_([*to], [*x]),
}


@item("6.aliasing")
@pytest.mark.parametrize("name", WRITE_SEVERAL)
def test_operands_begin_to_overlap_where_several_are_written(name):
    def make(run):
        to = torch.randn(8, 8)

        def step(x, overlaps):
            other = busy(torch.randn(8, 8))[:8, :8].clone()
            try:
                WRITE_SEVERAL[name](to, to if overlaps else other)
                error = None
            except RuntimeError as raised:
                error = str(raised)[:60]
            kept = to.clone()
            to.clamp_(-2, 2)
            return error, kept, other * 2, to.sum()

        return Case(step, lambda n: (torch.randn(1), n in (6, 8, 9)), to=to)

    check(make, calls=12)


@item("6.in-place-on-views")
def test_in_place_on_views():
    def make(run):
        weight = nn.Parameter(torch.randn(6, 6))

        def step(x, labels):
            base = x @ weight
            base[0].mul_(2)
            base[1:, 2:4] = 0.5
            base.T[3].add_(base[:, 0])
            base.view(-1)[::7].mul_(1.5)
            base[labels > 0] -= 1
            rows = base.unbind(0)
            left, right = base[:, :3], base[:, 3:]
            right.copy_(left.detach() * 2)
            base.diagonal().zero_()
            with torch.no_grad():
                weight[2].clamp_(-1, 1)
                weight.view(-1)[:5].sub_(0.01)
                torch.split(weight, 2)[1].mul_(0.99)
            try:
                rows[0].add_(1)
            except RuntimeError as error:
                kept = str(error)
            base.square().sum().backward()
            return base, left, right, kept

        return Case(step, batch, weight=weight)

    check(make)


@item("6.metadata-in-place")
def test_squeeze_and_t_in_place_and_their_like():
    def make(run):
        state = torch.zeros(1, 4, 1)

        def step(x, labels):
            made = (busy(x)[:1, :4] * 3).reshape(1, 4, 1)
            made.squeeze_()
            made.unsqueeze_(0).t_()
            alias = made.view(2, 2)
            made.mul_(2).squeeze_(1)
            made.as_strided_((2, 3), (1, 1), 0)
            alias.transpose_(0, 1).swapaxes_(0, 1).swapdims_(0, 1)
            state.add_(made.sum()).squeeze_(0).unsqueeze_(0)
            vector = torch.matmul(x, torch.ones(6))
            return made, alias, state[0], vector

        return Case(step, batch, state=state)

    check(make)


@item("6.out")
def test_out_arguments():
    def make(run):
        buffer, grown, indices = (
            torch.zeros(6, 6),
            torch.zeros(0),
            torch.zeros(0, dtype=torch.int64),
        )

        def step(x, labels):
            work = busy(x)[:6, :6]
            torch.mul(work, 2, out=buffer)
            torch.mm(work, buffer.clone(), out=buffer[:, :])
            torch.add(buffer, 1, out=buffer)
            values = torch.zeros(5)
            torch.max(x, 1, out=(values, indices)) if len(indices) else indices.resize_(5).zero_()
            made = torch.empty(6, 6)
            torch.sin(work, out=made)
            torch.cat([work[0], work[1]], out=grown) if len(grown) else grown.resize_(12).zero_()
            return made, values, torch.sum(work, 0, out=torch.empty(6))

        return Case(step, batch, buffer=buffer, grown=grown, indices=indices)

    check(make)


@item("6.out")
def test_out_argument_that_is_also_read_and_whose_memory_was_given_out():
    """As in Adamax: what is written is not the copy that the event got of what it reads."""

    def make(run):
        state, seen = torch.zeros(6, 6), torch.zeros(6, 6)
        array = seen.numpy()

        def step(x, labels):
            work = busy(x)[:6, :6]
            torch.maximum(state.mul_(0.9), work.abs().add_(1e-8), out=state)
            state.data_ptr()
            torch.add(seen.mul_(0.5), work.abs(), out=seen)
            torch.maximum(seen, work.abs(), out=seen)
            return float(array.sum()), state.sum()

        return Case(step, batch, state=state, seen=seen)

    check(make, calls=8, share=None)


@item("6.views")
def test_copies_keep_the_strides_of_dims_of_one_element():
    def make(run):
        base = torch.randn(17 * 3 * 5)

        def step(stride):
            x = base.as_strided((17, 3, 1, 5), (15, 1, stride, 3))
            return x.clone(), (x * 1).clone()

        return Case(step, lambda n: ([7, 15, 9, 33, 1][n % 5],), base=base)

    check(make, calls=10, share=None)


@item("6.aliasing")
def test_writing_the_number_that_autograd_keeps_changes_no_other():
    def make(run):
        x = torch.ones(3, requires_grad=True)

        def step(given, number):
            product = busy(given)[:3, :3].detach().requires_grad_() * number
            kept = product.grad_fn._saved_other
            kept.fill_(7.0)
            return product, x * number, kept * 1, kept.zero_(), x * number

        return Case(step, lambda n: (batch(n)[0], (2.5, 3, True, 1 + 2j)[n % 4]), x=x)

    check(make, calls=20, share=None)


@item("6.aliasing")
def test_scattered_copies_lie_in_a_copy_of_the_whole_storage():
    def make(run):
        base = torch.arange(100.0, 140.0)

        def step(is_inner):
            x = (base[5:17] if is_inner else base[:12].clone()).view(3, 4)
            made = [
                x.slice_scatter(torch.full((1, 4), 9.0), 0, 0, 1),
                x.select_scatter(torch.full((4,), 9.0), 0, 1),
                x.diagonal_scatter(torch.full((3,), 9.0)),
            ]
            where = [(y.storage_offset(), y.untyped_storage().nbytes()) for y in made]
            return made, where, [y.as_strided((4,), (1,), 0) * 1 for y in made]

        return Case(step, lambda n: (n in (6, 7, 9),), base=base)

    check(make, calls=10, share=None)


@item("6.aliasing")
def test_writes_through_two_views_of_memory_from_outside():
    """The second view finds the storage already linked to the runner's, by the first one."""

    def make(run):
        flat = torch.zeros(72)
        halves = [flat[:36].detach(), flat[36:].detach()]

        def step(x, labels):
            work = busy(x)[:6, :6].abs().reshape(-1)
            both = torch.cat([work, work * 2])
            torch._foreach_add_(halves, [both[:36], both[36:]])
            torch._foreach_lerp_(list(flat.chunk(2)), list(both.chunk(2)), 0.1)
            torch._foreach_add_([flat, flat[3:]], [both, both[3:]])
            torch.add(flat.view(72), both, out=flat)
            return flat.sum()

        return Case(step, batch, flat=flat)

    check(make, calls=8)


@item("6.data")
def test_version_counters_of_views_whose_memory_has_moved():
    """Two views share a counter, but no memory: each write counts for both, and once."""

    def make(run):
        flat = torch.randn(24)
        grid = flat.view(2, 3, 4)
        state = {"flat": flat, "grid": grid}

        def step(x):
            flat.data = flat.data * 0.5
            written = [flat.view(6, 4)[::2], grid[0, 1]]
            torch._foreach_maximum_(written, [busy(x)[0, 0] * torch.ones_like(t) for t in written])
            torch._foreach_mul_(list(flat.chunk(3)), x[0, 0])
            return [t._version for t in (flat, grid, *written)]

        return Case(step, lambda i: (torch.randn(6, 6),), **state)

    check(make)


@item("6.out")
def test_out_arguments_that_are_resized():
    """Empty ones are given the size of the result; those that keep their memory are aliases."""

    def make(run):
        base = torch.zeros(64)

        def step(x, labels):
            work = busy(x)[:6, :6]
            made = [torch.empty(0) for _ in range(4)]
            torch.mm(work, work.T, out=made[0])
            torch.add(work, 1, out=made[1])
            torch.linalg.inv(work @ work.T + 9 * torch.eye(6), out=made[2])
            torch.index_select(work, 0, torch.tensor([4, 0]), out=made[3])
            view = base[8:8]  # its storage has room: the result is seen through `base`
            torch.mul(work, 2, out=view)
            return [m * 1 for m in made], [m.stride() for m in made], made, view, base.sum()

        return Case(step, batch, base=base)

    check(make, share=1.0)


@item("6.out")
def test_resized_out_argument_of_a_kernel_that_resizes_twice():
    """With an argument of the final size it would warn; eager does not."""

    def make(run):
        def step(x, labels):
            work, made = busy(x)[:6, :6], torch.empty(0)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                torch._C._nn.linear(work[0], work, out=made)
            return made, made.shape

        return Case(step, batch)

    check(make)


@item("6.out")
def test_resized_out_argument_of_an_op_that_raises():
    def make(run):
        def step(matrix, index):
            inverse, rows = torch.empty(0), torch.empty(0)
            errors = []
            for ask in (
                lambda: torch.linalg.inv(matrix, out=inverse),
                lambda: torch.index_select(matrix, 0, index, out=rows),
            ):
                try:
                    ask()
                except (RuntimeError, IndexError) as error:
                    errors.append((type(error).__name__, str(error)))
            return errors, inverse.shape, rows.shape

        good, bad = torch.eye(3) * 2, torch.ones(3, 3)
        inputs = [(good, 0), (good, 1), (good, 2), (bad, 1), (good, 7), (bad, 7), (good, 1)]
        return Case(step, lambda i: (inputs[i][0].clone(), torch.tensor([inputs[i][1]])))

    check(make, calls=7, share=None)


@item("6.tensor-given-twice")
def test_the_same_tensor_given_twice():
    """Attention projects once where query, key and value are one tensor, and that rounds."""

    def make(run):
        layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True).eval()
        encoder = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).eval()

        def step(x, labels):
            work = busy(x)[:6, :8].reshape(2, 3, 8)
            with torch.no_grad():
                twin = work.view_as(work)
                return layer(work, work), layer(work, twin), encoder(work), work * work

        return Case(step, batch)

    check(make)


@item("6.set")
def test_set():
    def make(run):
        state, other = torch.zeros(4), torch.arange(6.0)

        def step(x, labels):
            work = busy(x)[0, :4] * 2
            other.add_(1)
            state.set_(work)
            state.add_(1)
            part = torch.zeros(0).set_(other.untyped_storage(), 1, (2,), (2,))
            empty = torch.ones(3).set_()
            return work, part, empty, state * 2

        return Case(step, batch, state=state, other=other)

    check(make, reason=EXPECTED["set_"])


@item("6.resize")
def test_resize():
    def make(run):
        state = torch.arange(4.0)

        def step(x, labels):
            work = (busy(x)[:4, :4] * 2).contiguous()
            alias = work.view(-1)
            work.resize_(2, 3)
            work.add_(1)
            state.resize_(6)[4:].zero_()
            state.add_(work.flatten())
            state.resize_(4)
            shrunk = alias.resize_as_(torch.zeros(3)) if len(labels) else alias
            work.untyped_storage().resize_(400)
            return work, shrunk, state * 2

        return Case(step, batch, state=state)

    check(make, reason=EXPECTED["resize_"])


@item("6.data")
def test_data():
    def make(run):
        net = small_net()

        def step(x, labels):
            out = net(x)
            out.data.mul_(3)
            out.sum().backward()
            net[0].weight.data.sub_(0.1 * net[0].weight.grad.data)
            net[4].weight.data = net[4].weight.data * 0.9
            net[4].bias.grad.data.zero_()
            fresh = busy(x)[0, :3]
            net[4].bias.data.copy_(fresh)
            net[4].bias.data = fresh * 2
            return out, out.data, net[4].bias.data

        return Case(step, batch, net=net)

    check(make)


@item("6.swap-tensors")
def test_swap_tensors():
    def make(run):
        weight, other = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6, 6))
        state = [torch.zeros(3), torch.ones(4)]

        def step(x, labels):
            out = (x @ weight).tanh() + (x @ other)
            out.sum().backward()
            weight.grad = other.grad = None
            made, second = busy(x)[0, :3] * 2, busy(x)[1, :4] * 3
            del out
            torch.utils.swap_tensors(made, second)
            torch.utils.swap_tensors(state[0], state[1])
            state[0].add_(made.sum())
            return made, second

        return Case(step, batch, weight=weight, other=other, state=state)

    check(make)


@item("6.tied-weights")
def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
            self.inner = nn.Linear(6, 6)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.inner(self.inner(self.embed(tokens)).relu()))

    def make(run):
        net = Tied()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

        def step(tokens):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss

        return Case(step, lambda n: (torch.randint(0, 7, (3, 5)),), net=net, optimizer=optimizer)

    check(make)


@item("6.requires-grad-in-the-middle")
def test_requires_grad_in_the_middle():
    def make(run):
        net = small_net()

        def step(x, labels, is_frozen):
            net[0].requires_grad_(not is_frozen)
            hidden = net[0](x)
            work = busy(x)[:5, :3].clone().requires_grad_()
            out = net[1:](hidden) * work
            net[4].weight.requires_grad_(False)
            after = out @ net[4].weight
            net[4].weight.requires_grad_(True)
            after.sum().backward()
            return work, out, hidden.detach().requires_grad_()

        return Case(step, lambda n: (*batch(), n % 2 == 1), net=net)

    check(make, calls=7)


@item("6.data")
def test_version_counters_and_inference_mode():
    def make(run):
        kept = torch.zeros(3)

        def step(number):
            with torch.inference_mode(number % 3 == 2):
                kept.data = kept.data.clone()
            made = torch.ones(3)
            torch._foreach_add_([made, kept], 1)
            with torch.inference_mode(number % 4 > 1):
                blank = torch.ops.aten.zeros([2])
            versions = [kept._version, None if blank.is_inference() else blank._version]
            return made, kept.clone(), versions

        return Case(step, lambda n: (n,), kept=kept)

    check(make, calls=16, share=None)
