"""Traces merge into one graph, linear in the program: branches, loops and recursion.

Every case is run eagerly and in lockstep with the same random choices, and each result is compared
bit for bit. Counts of nodes, traced calls and divergences show that ways join again.
"""

import inspect
import itertools
import random
import sys

import lockstep
import pytest
import torch
from both_ways import bits, divergences_of_second_pass, run_both


@pytest.fixture(autouse=True)
def one_thread():
    """Kernels run on one thread: the tensors are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- sizes


def test_gradients_in_new_sizes_lie_as_in_eager():
    """In the order of dims of what went forward, whatever order the gradient comes in."""

    def step(n):
        generator = torch.Generator().manual_seed(n)
        x = torch.randn(2, n, 80, generator=generator, requires_grad=True)
        gradients = []
        for k in range(2):
            h = torch.relu(x)
            turned = h.transpose(1, 2).contiguous() * torch.randn(80, n, generator=generator)
            gradients += torch.autograd.grad(h.sum() if k == 0 else turned.sum(), x)
        return *(g.stride() for g in gradients), gradients[1].view(-1), gradients[1].sum()

    fast = lockstep.function(step, when="always")
    for n in range(40, 52):
        *strides, flat, total = fast(n)
        *eager_strides, eager_flat, eager_total = step(n)
        assert strides == eager_strides
        assert bits(flat) == bits(eager_flat) and bits(total) == bits(eager_total)
    assert lockstep.stats(fast)["traced_calls"] < 6


def test_masked_fill_in_new_sizes_makes_a_copy_in_the_order_of_dims():
    def step(n):
        generator = torch.Generator().manual_seed(n)
        x, mask = torch.randn(3, 8, n, generator=generator), torch.rand(3, n, 8) > 0.5
        cut = x[:, :, : n - 1], mask.transpose(1, 2)[:, :, : n - 1]
        filled = [a.masked_fill(b, 0.0) for a, b in (cut, (x.transpose(1, 2), mask))]
        return [(a.stride(), a.is_contiguous()) for a in filled]

    fast = lockstep.function(step, when="always")
    for n in range(5, 13):
        assert fast(n) == step(n)


# ---- branches


def twelve_branches(x, coins):
    h = x
    h = h.sin() if coins[0] else h.cos()
    h = h * 2.0 if coins[1] else h + 1.0
    h = h.tanh() if coins[2] else h.sigmoid()
    h = h - 0.5 if coins[3] else h / 3.0
    h = h.abs() if coins[4] else h.neg()
    h = h.exp() if coins[5] else h.square()
    h = h.relu() if coins[6] else h.erf()
    h = h.clamp(-1.0, 1.0) if coins[7] else h.atan()
    h = h.t() if coins[8] else h.flip(0)
    h = h + x if coins[9] else h * x
    h = h.cumsum(0) if coins[10] else h.softmax(0)
    h = h.log1p() if coins[11] else h.expm1()
    return h.sum()


OPS_OF_TWELVE_BRANCHES = 2 * 12 + 1


def test_twelve_branches_converge():
    rng = random.Random(3)
    x = torch.randn(4, 4)
    calls = [(x, [rng.random() < 0.5 for _ in range(12)]) for _ in range(500)]
    assert len({tuple(coins) for _, coins in calls}) > 400
    at_400 = {}

    def look(fast, i):
        if i == 399:
            at_400.update(lockstep.stats(fast))

    fast = run_both(twelve_branches, calls, look)
    stats = lockstep.stats(fast)
    assert stats["calls"] == 500
    assert stats["traced_calls"] <= 60, stats
    assert stats["nodes"] <= 3 * OPS_OF_TWELVE_BRANCHES, stats
    assert stats["divergences"] == at_400["divergences"], "diverged in the last 100 calls"


def test_branches_with_backward_converge():
    weight = torch.randn(4, 4, requires_grad=True)

    def step(x, coins):
        weight.grad = None
        h = x
        for i in range(3):
            h = (h @ weight).tanh() if coins[i] else (h * weight).relu()
        if coins[3]:
            h = h.sin()
        h.sum().backward()
        return h, weight.grad.clone()

    every_way = list(itertools.product([False, True], repeat=4))
    calls = [(torch.randn(4, 4), coins) for coins in every_way]
    assert divergences_of_second_pass(step, calls) == 0


def test_an_operand_that_varies():
    def choose(a, b, flag):
        h = a if flag else b
        return h * 2 + h.exp()

    a, b = torch.randn(3), torch.randn(3)
    calls = [(a, b, i % 3 == 0) for i in range(12)]
    fast = run_both(choose, calls)
    stats = lockstep.stats(fast)
    assert stats["divergences"] == 0 and stats["traced_calls"] == 1, stats


def test_an_operand_made_in_one_of_two_places():
    def choose(x, flag):
        first = x.sin()
        second = x.cos()
        h = first if flag else second
        h.mul_(3)
        return first, second, h + 1

    calls = [(torch.randn(3), i % 2 == 0) for i in range(8)]
    fast = run_both(choose, calls)
    assert lockstep.stats(fast)["divergences"] == 0


def test_the_same_tensor_twice():
    def combine(a, b):
        a = a.clone()
        a.add_(b)
        return a, a * b

    def in_place(a, b):
        a.add_(1)
        b.mul_(2)
        return a + b

    a, b = torch.randn(5), torch.randn(5)
    pairs = [(a, b), (a, b), (a, a), (b, b), (a, b), (b, a), (a, a)]
    run_both(combine, pairs)
    fast = lockstep.function(in_place, when="always")
    for same in (False, False, True, True, False, True):
        mine = [torch.arange(4.0), torch.ones(4)]
        theirs = [torch.arange(4.0), torch.ones(4)]
        want = in_place(mine[0], mine[0] if same else mine[1])
        got = fast(theirs[0], theirs[0] if same else theirs[1])
        assert bits([want, mine]) == bits([got, theirs])


def test_overlapping_views_after_separate_ones():
    def shift(source, target):
        target.add_(source.clone())
        result = source * 2
        try:
            target.add_(source)
        except RuntimeError as error:
            return result, str(error)
        return result, source + target

    def buffers(overlap):
        base = torch.arange(8.0)
        return (base[:4], base[2:6], base) if overlap else (base[:4], base[4:], base)

    fast = lockstep.function(shift, when="always")
    for overlap in (False, False, True, False, True, True):
        source, target, base = buffers(overlap)
        want = bits([shift(source, target), base])
        source, target, base = buffers(overlap)
        assert bits([fast(source, target), base]) == want


# ---- loops


def recurrent(sequence, weight, bias):
    h = bias
    for element in sequence:
        h = torch.addmv(element, weight, h).tanh_()
    return h


def test_a_thousand_lengths_are_one_loop():
    rng = random.Random(5)
    weight, bias = torch.randn(4, 4), torch.randn(4)
    lengths = list(range(1, 1001))
    rng.shuffle(lengths)
    lengths[:3] = [2, 3, 5]  # short first ones: all that can be learned is learned by them
    elements = list(torch.randn(1000, 4))
    fast = lockstep.function(recurrent, when="always")
    node_counts = []
    for i, length in enumerate(lengths):
        got = fast(elements[:length], weight, bias)
        node_counts.append(lockstep.stats(fast)["nodes"])
        if i < 20 or i % 100 == 0:
            assert bits(got) == bits(recurrent(elements[:length], weight, bias))
    assert node_counts[2] == node_counts[-1] <= 3 * 2, node_counts[-1]
    assert lockstep.stats(fast)["traced_calls"] <= 3


class VaryingAttention(torch.nn.Module):
    """Embedding, convolution, attention with a mask, norms; labels that do not count."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(20, 16)
        self.mix = torch.nn.Conv1d(16, 16, 3, padding=1)
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(16), torch.nn.GroupNorm(2, 16)])
        self.attention = torch.nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(16, 20)

    def forward(self, tokens, is_padding):
        position = torch.arange(tokens.shape[1])
        x = self.embed(tokens) + torch.sin(position[:, None] / torch.full((16,), 7.0))
        x = x + self.norms[1](self.mix(x.transpose(1, 2))).transpose(1, 2)
        y = self.norms[0](x)
        mixed, _ = self.attention(y, y, y, key_padding_mask=is_padding, need_weights=False)
        mixed[is_padding] = 0.5
        return self.head(x + mixed)


def test_sizes_never_met_before_are_neither_recorded_nor_waited_for():
    torch.manual_seed(0)
    eager = VaryingAttention()
    fast = VaryingAttention()
    fast.load_state_dict(eager.state_dict())

    def step(model, tokens, length):
        is_padding = torch.arange(tokens.shape[1])[None] >= length[:, None]
        labels = tokens.masked_fill(is_padding, -100)
        logits = model(tokens, is_padding)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss.detach()

    decorated = lockstep.function(step, when="always")
    generator = torch.Generator().manual_seed(1)
    for call in range(12):
        n, width = 2 + call % 4, 5 + 3 * call
        tokens = torch.randint(0, 20, (n, width), generator=generator)
        length = torch.randint(2, width + 1, (n,), generator=generator)
        if call == 3:
            lockstep.reset_stats(decorated)
        torch.manual_seed(call)
        want = step(eager, tokens, length)
        torch.manual_seed(call)
        assert bits(decorated(fast, tokens, length)) == bits(want), call
    assert bits(fast.state_dict()) == bits(eager.state_dict())
    stats = lockstep.stats(decorated)
    assert stats["traced_calls"] == 0, lockstep.explain(decorated)
    assert stats["graph_ops"] == stats["ops"]
    # What an index holds is looked at where the op is asked; nothing else is waited for.
    assert stats["waits"] <= 3 * stats["calls"], lockstep.explain(decorated)


def test_loops_in_a_training_step():
    cell = torch.nn.GRUCell(3, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    state = {name: value.clone() for name, value in cell.state_dict().items()}

    def step(length):
        optimizer.zero_grad()
        h = torch.zeros(2, 4)
        for i in range(length):
            h = cell(torch.full((2, 3), float(i)), h)
        h.square().mean().backward()
        optimizer.step()
        return [h, *cell.parameters()]

    lengths = [3, 1, 6, 2, 9, 4, 12, 7, 1, 5]
    want = [bits(step(length)) for length in lengths]
    cell.load_state_dict(state)
    fast = lockstep.function(step, when="always")
    nodes = []
    for length, expected in zip(lengths, want, strict=True):
        assert bits(fast(length)) == expected
        nodes.append(lockstep.stats(fast)["nodes"])
    assert nodes[4] == nodes[-1], nodes


def test_while_on_the_value_of_a_tensor():
    def collatz(n):
        steps = torch.zeros((), dtype=torch.int64)
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps = steps + 1
        return steps

    fast = run_both(collatz, [(torch.tensor(n),) for n in [6, 27, 1, 7, 97, 2, 31]])
    first = lockstep.stats(fast)["nodes"]
    assert first <= 3 * 8  # != % == // * + +, and the reads
    lockstep.reset_stats(fast)
    assert fast(torch.tensor(871)).item() == 178
    stats = lockstep.stats(fast)
    assert stats["nodes"] == first and stats["divergences"] == 0, stats


def test_nested_loops_with_break_and_continue():
    def walk(x, plan):
        total = x
        for row in plan:
            for kind in row:
                if kind == "skip":
                    continue
                if kind == "stop":
                    break
                total = total.sin() if kind == "sin" else total + 1
            else:
                total = total * 2
        return total

    rng = random.Random(1)
    kinds = ["skip", "stop", "sin", "add", "add"]
    plans = [[rng.choices(kinds, k=rng.randrange(5)) for _ in range(3)] for _ in range(40)]
    assert divergences_of_second_pass(walk, [(torch.randn(3), plan) for plan in plans]) == 0


# ---- recursion


def random_tree(rng, leaves):
    """A leaf is an int below 16, a node is a pair."""
    if leaves == 1:
        return rng.randrange(16)
    left = rng.randrange(1, leaves)
    return random_tree(rng, left), random_tree(rng, leaves - left)


def test_recursion_on_500_random_trees():
    rng = random.Random(11)
    table, weight = torch.randn(16, 4), torch.randn(8, 4)

    def encode(tree):
        if isinstance(tree, int):
            return table[tree]
        left, right = encode(tree[0]), encode(tree[1])
        return torch.tanh(torch.cat([left, right]) @ weight)

    trees = [random_tree(rng, rng.randrange(1, 12)) for _ in range(500)]
    assert len(set(map(str, trees))) > 400
    nodes = []
    fast = run_both(
        lambda tree: encode(tree),
        [(tree,) for tree in trees],
        lambda fast, i: nodes.append(lockstep.stats(fast)["nodes"]),
    )
    stats = lockstep.stats(fast)
    assert stats["nodes"] <= 3 * 5, stats
    assert nodes[20] == nodes[-1], nodes[::50]
    assert stats["traced_calls"] <= 25, stats


def test_recursion_with_backward_on_random_trees():
    rng = random.Random(12)
    table = torch.randn(16, 4, requires_grad=True)
    weight = torch.randn(8, 4, requires_grad=True)

    def encode(tree):
        if isinstance(tree, int):
            return table[tree]
        return torch.tanh(torch.cat([encode(tree[0]), encode(tree[1])]) @ weight)

    def step(tree):
        table.grad = weight.grad = None
        encode(tree).sum().backward()
        return table.grad, weight.grad

    trees = [random_tree(rng, rng.randrange(2, 9)) for _ in range(60)]
    nodes = []
    fast = run_both(
        step,
        [(tree,) for tree in trees],
        lambda fast, i: nodes.append(lockstep.stats(fast)["nodes"]),
    )
    assert nodes[-1] <= 60, nodes[-1]
    lockstep.reset_stats(fast)
    for tree in trees:
        fast(tree)
    assert lockstep.stats(fast)["divergences"] == 0


def test_recursion_of_depth_2000():
    def descend(x, depth):
        if depth == 0:
            return x
        return descend(x * 1.001, depth - 1) + 1

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 5000 + len(inspect.stack())))
    try:
        x = torch.ones(2)
        fast = run_both(descend, [(x, 3), (x, 2000), (x, 2000), (x, 1), (x, 1500)])
        stats = lockstep.stats(fast)
        assert stats["nodes"] <= 3 * 2, stats
        lockstep.reset_stats(fast)
        fast(x, 2000)
        assert lockstep.stats(fast)["graph_ops"] == 4000
    finally:
        sys.setrecursionlimit(before)


def test_a_decorated_function_calls_itself_as_deeply_as_another():
    def deepest(decorate):
        reached = 0

        @decorate
        def descend(x):
            nonlocal reached
            reached += 1
            return descend(x + 1)

        with pytest.raises(RecursionError):
            descend(torch.zeros(1))
        return reached

    plain = deepest(lambda fn: fn)
    for when in ("always", "never"):
        assert abs(deepest(lockstep.function(when=when)) - plain) < 20
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:  # the stack of C++ ends first: an error, not the end of the process
        assert deepest(lockstep.function) > 2000
    finally:
        sys.setrecursionlimit(before)


def test_mutual_recursion():
    def even(x, n):
        return x if n == 0 else odd(x + 1, n - 1)

    def odd(x, n):
        return x * 3 if n == 0 else even(x.sin(), n - 1)

    calls = [(torch.ones(2), n) for n in [1, 2, 3, 8, 5, 13, 0, 4]]
    assert divergences_of_second_pass(lambda x, n: even(x, n), calls) == 0


@pytest.mark.parametrize("make", [torch.ones, torch.full, torch.randn, torch.rand, torch.zeros])
def test_devices_are_told_apart(make):
    """Ops without tensors among their arguments, on two devices, in one function and in two."""
    args = ((3,), 2.0) if make is torch.full else (3,)

    @lockstep.function(when="always")
    def both():
        return make(*args), make(*args, device="meta"), make(*args) + 1

    @lockstep.function(when="always")
    def on_meta():
        return make(*args, device="meta") + 1

    for _ in range(4):
        here, there, more = both()
        assert [t.device.type for t in (here, there, more)] == ["cpu", "meta", "cpu"]
        assert on_meta().device.type == "meta"


def test_versions_of_what_is_made_of_inference_tensors():
    """Kernels count writes to their results there, and elsewhere not."""

    def versions(index):
        with torch.inference_mode(index % 2 == 0):
            y = torch.ones(7, 3)
        return [op(y)._version for op in (torch.sum, torch.mean, torch.prod, torch.any, torch.relu)]

    in_lockstep = lockstep.function(when="always", numerics="strict")(versions)
    for index in range(6):
        assert in_lockstep(index) == versions(index)


@pytest.mark.parametrize("numerics", ["strict", "default"])
def test_numbers_of_another_kind_are_no_new_sizes(numerics):
    """A learning rate that was zero, for many parameters: none of them is recorded anew."""

    def run(decorate):
        torch.manual_seed(0)
        weights = [torch.randn(size, requires_grad=True) for size in range(300, 320)]
        optimizer = torch.optim.SGD(weights, lr=0.0, foreach=False)

        def step():
            optimizer.zero_grad()
            sum((weight.sin() * weight).sum() for weight in weights).backward()
            optimizer.step()

        step = decorate(step)
        for rate in (0.0, 0.0, 0.0, 0.1, 0.01, 0.0, -0.1, 0.1):
            optimizer.param_groups[0]["lr"] = rate
            step()
        return step, weights

    _, expected = run(lambda step: step)
    step, weights = run(lockstep.function(when="always", numerics=numerics))
    stats = lockstep.stats(step)
    assert stats["traced_calls"] <= 2 and "new_sizes" not in stats["reasons"], stats
    for weight, one in zip(weights, expected, strict=True):
        assert torch.equal(weight, one) if numerics == "strict" else torch.allclose(weight, one)
