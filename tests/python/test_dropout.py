"""Dropout whose masks the runner keeps as bits: who draws them, reads them, finds floats."""

import lockstep
import pytest
import torch
from lockstep import _C
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CALLS = 6


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))


def plain(x):
    return F.dropout(x * 2, 0.1) + x


def in_place(x):
    return F.dropout(x * 2, 0.3, inplace=True) + x


def turned(x):
    return F.dropout(x.transpose(1, 2), 0.3) * x.transpose(1, 2)


def alpha(x):
    return F.alpha_dropout(x * 2, 0.2, training=True)


def of_attention(x):
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.2)


def of_softmax(x):
    return F.dropout(x @ x.mT, 0.2).softmax(-1) @ x + F.dropout(x.softmax(-1), 0.1)


def twice(x):
    return F.dropout(F.dropout(x, 0.4), 0.1)


def recomputed(x):
    return checkpoint(lambda y: F.dropout(y.tanh(), 0.2), x * 3, use_reentrant=False)


def double(x):
    return F.dropout(x.double(), 0.2)


def in_bfloat16(x):
    return F.dropout(x.bfloat16(), 0.2).float()


def written_by_hand(x):
    mask = torch.empty_like(x).bernoulli_(0.8).div_(0.8)
    return x * mask + mask


def drawn_again(x):
    mask = torch.empty_like(x).bernoulli_(0.8)
    y = x.detach() * mask
    return y + x * mask.bernoulli_(0.3)


def with_a_tail(x):
    mask = torch.empty_like(x).bernoulli_(0.8)
    return x * mask[:, 3:, 1:].sum() + x * mask.view(-1)[::2].sum()


def train(forward, numerics, calls=CALLS, **options):
    """Losses, gradients and what is left of the generator after each call."""
    torch.manual_seed(0)
    x = torch.randn(6, 33, 40, requires_grad=True)

    def step():
        x.grad = None
        y = forward(x)
        y.square().sum().backward()
        return y.detach()

    run = step
    if numerics:
        run = lockstep.function(step, when="always", numerics=numerics, **options)
    seen = []
    for _ in range(calls):
        seen += [run().clone(), x.grad.clone(), torch.get_rng_state()]
        _C.wait_for_kernels()
    return seen


FORWARDS = [
    plain,
    in_place,
    turned,
    alpha,
    of_attention,
    of_softmax,
    twice,
    recomputed,
    double,
    in_bfloat16,
    written_by_hand,
    drawn_again,
    with_a_tail,
]


@pytest.mark.parametrize("forward", FORWARDS)
def test_values_gradients_and_generator_are_those_without_bits(forward):
    masks = _C.fusion_statistics()["packed_masks"]
    with_bits = train(forward, "default", deterministic=True)
    assert _C.fusion_statistics()["packed_masks"] > masks
    without = train(forward, "default", deterministic=True, without="pack_masks")
    for mine, theirs in zip(with_bits, without, strict=True):
        assert torch.equal(mine, theirs)
    for mine, eager in zip(with_bits, train(forward, None), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("runner", ["behind", "yielding", "inplace"])
def test_it_is_so_wherever_events_run(runner):
    eager = train(plain, None)
    for mine, theirs in zip(train(plain, "default", runner=runner), eager, strict=True):
        assert torch.equal(mine, theirs)


def test_strict_has_no_bits():
    masks = _C.fusion_statistics()["packed_masks"]
    for mine, theirs in zip(train(plain, "strict"), train(plain, None), strict=True):
        assert torch.equal(mine, theirs)
    assert _C.fusion_statistics()["packed_masks"] == masks


def look_at_the_mask(look):
    torch.manual_seed(3)
    x = torch.randn(80, 70, requires_grad=True)

    def step():
        x.grad = None
        y = F.dropout(x, 0.25)
        seen = look(y)
        y.sum().backward()
        return seen

    return step, x


@pytest.mark.parametrize(
    "look",
    [
        lambda y: y.grad_fn._saved_other.clone(),
        lambda y: y.grad_fn._saved_other.numpy().copy(),
        lambda y: y.grad_fn._saved_other.count_nonzero().item(),
        lambda y: y.grad_fn._saved_other[7].tolist(),
        lambda y: y.grad_fn._saved_other.view(torch.int32) + 1,
        lambda y: y.grad_fn._saved_other.add_(1).clone(),
    ],
    ids=["copied", "as an array", "counted", "as a list", "as integers", "written"],
)
def test_who_looks_at_a_mask_finds_floats(look):
    results = []
    for decorate in (
        lambda fn: fn,
        lambda fn: lockstep.function(fn, when="always", numerics="default"),
    ):
        step, x = look_at_the_mask(look)
        run = decorate(step)
        seen = []
        for _ in range(CALLS):
            try:
                seen.append(torch.as_tensor(run()))
            except RuntimeError as error:  # a saved tensor was written
                seen.append(torch.tensor("modified by an inplace operation" in str(error)))
            seen.append(torch.zeros(0) if x.grad is None else x.grad.clone())
        results.append(seen)
    for eager, mine in zip(*results, strict=True):
        assert torch.equal(mine, eager)


def test_hooks_of_saved_tensors_get_the_mask():
    def train_with(decorate):
        torch.manual_seed(1)
        x = torch.randn(90, 50, requires_grad=True)
        kept = []

        def pack(tensor):
            kept.append(tensor.clone())
            return tensor

        def step():
            x.grad = None
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 2):
                y = F.dropout(x, 0.5)
            y.sum().backward()
            return x.grad.clone()

        run = decorate(step)
        return [run() for _ in range(CALLS)] + kept

    eager = train_with(lambda fn: fn)
    mine = train_with(lambda fn: lockstep.function(fn, when="always", numerics="default"))
    assert len(mine) == len(eager)
    assert all(map(torch.equal, mine, eager))


def test_a_network_with_dropout_trains_as_in_eager():
    def losses(decorate):
        torch.manual_seed(2)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, batch_first=True)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
        x = torch.randn(8, 40, 32)

        def step():
            optimizer.zero_grad()
            loss = (layer(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = decorate(step)
        return [float(run()) for _ in range(20)], torch.get_rng_state()

    eager, state = losses(lambda fn: fn)
    masks = _C.fusion_statistics()
    mine, own_state = losses(lambda fn: lockstep.function(fn, when="always", numerics="default"))
    after = _C.fusion_statistics()
    assert mine == pytest.approx(eager, rel=1e-4)
    assert torch.equal(state, own_state)
    assert after["packed_masks"] > masks["packed_masks"]
