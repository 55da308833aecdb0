"""Traces merge whatever Python leads: statements of all kinds, numbers and sizes that change.

Every case is run eagerly and in lockstep, and each result is compared bit for bit.
"""

import contextlib
import itertools
import warnings

import lockstep
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from both_ways import bits, divergences_of_second_pass, run_both


@pytest.fixture(autouse=True)
def one_thread():
    """Kernels run on one thread: the tensors are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- other Python


def test_match_statement():
    def apply(x, command):
        match command:
            case ("scale", factor):
                return x * factor
            case {"kind": "shift", "by": by}:
                return x + by
            case [first, *rest] if len(rest) > 1:
                return x - first + sum(rest)
            case str(name):
                return getattr(x, name)()
            case _:
                return x.clone()

    commands = [("scale", 2.0), {"kind": "shift", "by": 3}, [1, 2, 3], "sin", None, "cos", [1, 2]]
    calls = [(torch.randn(3), command) for command in commands * 3]
    assert divergences_of_second_pass(apply, calls) == 0


def test_comprehensions_and_generators():
    def scaled(x, count):
        for i in range(count):
            yield x * i

    def collect(x, count):
        as_list = [part.sin() for part in scaled(x, count)]
        as_dict = {i: part + i for i, part in enumerate(as_list)}
        total = sum(value for value in as_dict.values() if value.sum() > 0)
        nested = [[a * b for a in as_list] for b in as_list[:2]]
        return as_list, as_dict, total, nested

    calls = [(torch.randn(3), count) for count in [2, 5, 1, 0, 7, 3]]
    assert divergences_of_second_pass(collect, calls) == 0


def test_try_except_finally():
    log = []

    def guarded(x, kind):
        try:
            if kind == "shape":
                x @ torch.ones(7, 7)
            if kind == "user":
                raise KeyError("user")
            h = x.exp()
        except RuntimeError as error:
            log.append(str(error)[:20])
            h = x - 1
        except KeyError:
            h = x + 1
        else:
            h = h * 2
        finally:
            x = x.sin()
            log.append(kind)
        return h + x

    kinds = ["none", "shape", "user", "none", "user", "shape", "shape", "none"]
    calls = [(torch.randn(3, 3), kind) for kind in kinds]
    assert divergences_of_second_pass(guarded, calls) == 0
    assert log.count("shape") == 4 * kinds.count("shape")


def test_with_statements():
    @contextlib.contextmanager
    def scaled(x, factor):
        yield x * factor

    def step(x, use_grad, suppress):
        with torch.set_grad_enabled(use_grad), scaled(x, 2.0) as y:
            z = y * x
        with contextlib.suppress(ValueError):
            z = z + 1
            if suppress:
                raise ValueError
            z = z * 3
        return z, z.requires_grad

    calls = []
    for use_grad, suppress in itertools.product([True, False], [True, False]):
        x = torch.randn(3, requires_grad=True)
        calls += [(x, use_grad, suppress)] * 2
    assert divergences_of_second_pass(step, calls) == 0


def test_closures_lambdas_and_higher_order_functions():
    def compose(x, names):
        stages = [(lambda h, op=name: getattr(torch, op)(h)) for name in names]
        for stage in stages:
            x = stage(x)
        return list(map(lambda h: h + 1, x.unbind()))

    names = [["sin", "cos"], ["exp"], ["tanh", "tanh", "sin"], [], ["cos", "exp"]]
    calls = [(torch.randn(3), item) for item in names * 2]
    assert divergences_of_second_pass(compose, calls) == 0


# ---- numbers, strings and sizes that change


def test_numbers_that_change_are_feeds():
    def update(weight, gradient, rate, number):
        weight = weight - rate * gradient
        return torch.add(weight, gradient, alpha=number) / (number + 1)

    weight, gradient = torch.randn(4), torch.randn(4)
    calls = [(weight, gradient, 0.1 / (i + 1), i) for i in range(20)]
    fast = run_both(update, calls)
    stats = lockstep.stats(fast)
    assert stats["divergences"] == 0 and stats["traced_calls"] == 1, stats


def test_learning_rate_and_step_counter_of_adam():
    model = torch.nn.Linear(3, 2)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(5, 3)

    def train(wrap):
        model.load_state_dict(state)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        history = []
        for _ in range(12):
            history.append(bits([step(), *model.parameters()]))
            scheduler.step()
        return history, step

    want, _ = train(lambda fn: fn)
    got, fast = train(lockstep.function(when="always"))
    assert got == want
    stats = lockstep.stats(fast)
    assert stats["divergences"] <= 2 and stats["traced_calls"] <= 3, (
        stats
    )  # Adam's first step is another way


def test_strings_that_change_are_feeds():
    def contract(a, b, equation, rounding):
        return torch.einsum(equation, a, b), torch.div(a, b, rounding_mode=rounding)

    a, b = torch.randn(3, 3), torch.randn(3, 3)
    ways = itertools.product(["ij,jk->ik", "ij,kj->ik", "ij,ij->ij"], ["floor", "trunc", None])
    calls = [(a, b, equation, rounding) for equation, rounding in ways]
    assert divergences_of_second_pass(contract, calls) == 0
    only_rounding = [(a, b, "ij,jk->ik", r) for r in ("floor", "trunc", "floor", "trunc")]
    assert lockstep.stats(run_both(contract, only_rounding))["divergences"] == 0


def test_sizes_and_dtypes_that_change_are_no_divergence():
    def normalize(x):
        y = x - x.mean()
        return y.reshape(-1)[: x.shape[0]] * x.shape[-1]

    shapes = [(2, 3), (5, 1), (1, 7), (4, 4), (2, 3)]
    calls = [(torch.randn(shape),) for shape in shapes]
    calls += [(torch.randn(2, 2, dtype=torch.float64),)]
    fast = run_both(normalize, calls)
    assert lockstep.stats(fast)["divergences"] == 0


@pytest.mark.parametrize("name", ["nonzero", "boolean_index", "unique", "masked_select", "where"])
def test_sizes_that_depend_on_data(name):
    ways = {
        "nonzero": lambda x: (x > 0).nonzero(),
        "boolean_index": lambda x: x[x > 0] * 2,
        "unique": lambda x: torch.unique((x * 2).round(), return_counts=True),
        "masked_select": lambda x: torch.masked_select(x, x < 0.5).sin(),
        "where": lambda x: torch.where(x > 0),
    }
    find = ways[name]

    def pick(x):
        found = find(x.tanh())
        first = found if isinstance(found, torch.Tensor) else found[0]
        return found, first.shape[0], first + 1

    generator = torch.Generator().manual_seed(4)
    calls = [(torch.randn(9, generator=generator),) for _ in range(12)]
    calls += [(torch.full((9,), -5.0),), (torch.full((9,), 5.0),)]
    fast = run_both(pick, calls)
    stats = lockstep.stats(fast)
    assert stats["divergences"] == 0 and stats["traced_calls"] == 1, stats


def test_size_that_depends_on_data_decides_a_loop():
    def shrink(x):
        count = 0
        while x.numel() > 1:
            x = x[x > x.mean()] if x.max() > x.min() else x[:1]
            count += 1
        return x, count

    generator = torch.Generator().manual_seed(4)
    calls = [(torch.randn(n, generator=generator),) for n in [5, 50, 1, 17, 200, 3]]
    assert divergences_of_second_pass(shrink, calls) == 0


def test_layers_at_one_location_have_their_own_sizes():
    sizes = [3, 8, 8, 2]
    weights = [torch.randn(b, a) for a, b in itertools.pairwise(sizes)]

    def forward(x, depth):
        for weight in weights[:depth]:
            x = torch.nn.functional.linear(x, weight).relu()
        return x

    fast = run_both(forward, [(torch.randn(4, 3), depth) for depth in [3, 3, 1, 2, 3]])
    assert lockstep.stats(fast)["nodes"] <= 3 * 2


def test_new_sizes_are_not_waited_for():
    """What an op makes of other sizes is inferred, and is what eager makes: values and strides."""

    def step(x, w):
        h = torch.tanh(x @ w.t()) * 0.5 + x
        parts = torch.cat([h, x.relu()], 1)
        return parts.softmax(-1).sum(0), (h > 0).float().t() @ h

    fast = lockstep.function(step, when="always")
    w = torch.randn(6, 6)
    for n in (3, 3, 3):
        fast(torch.randn(n, 6), w)
    lockstep.reset_stats(fast)
    for n in range(4, 40):
        x = torch.randn(n, 6)
        for own, eager in zip(fast(x, w), step(x, w), strict=True):
            assert torch.equal(own, eager) and own.stride() == eager.stride()
    stats = lockstep.stats(fast)
    assert stats["eager_ops"] == 0
    assert stats["waits"] <= stats["calls"], "more than the one at the end of each call"


def test_a_size_that_depends_on_data_waits_for_that_data_alone():
    """What was asked before, and has nothing to do with it, goes on meanwhile."""

    def step(x, w, chosen):
        for _ in range(20):
            x = torch.mm(x, w)
        parts = []
        for index in range(4):
            rows, slots = torch.where(chosen == index)
            parts.append((x[rows] * slots[:, None]).sum())
        return torch.stack(parts)

    fast = lockstep.function(step, when="always")
    generator = torch.Generator().manual_seed(2)
    x, w = torch.randn(2, 400, 400, generator=generator) / 20
    for call in range(12):
        if call == 4:
            lockstep.reset_stats(fast)
        chosen = torch.randint(4, (400, 2), generator=generator)
        assert torch.equal(fast(x, w, chosen), step(x, w, chosen))
    stats = lockstep.stats(fast)
    assert stats["eager_ops"] == 0
    assert stats["waits"] <= stats["calls"], "more than the one at the end of each call"


def run_with_truth_values(step):
    """The decorated step(x, w, rows, places) after 18 calls that equal eager; stats of the last 10.

    x and w: (170, 170); rows and places: truth values of a row and of an element, other ones in
    each call.
    """
    fast = lockstep.function(step, when="always")
    generator = torch.Generator().manual_seed(2)
    x, w = torch.randn(2, 170, 170, generator=generator) / 12
    for call in range(18):
        if call == 8:
            lockstep.reset_stats(fast)
        rows = torch.rand(170, generator=generator) < 0.1 + call / 30
        places = torch.rand(170, 170, generator=generator) < 0.3
        for own, eager in zip(fast(x, w, rows, places), step(x, w, rows, places), strict=True):
            assert torch.equal(own, eager) and own.stride() == eager.stride()
    stats = lockstep.stats(fast)
    assert stats["eager_ops"] == 0 and stats["divergences"] == 0
    return fast


def test_choosing_by_known_truth_values_waits_for_nothing():
    """The size of the result is known; what is chosen from may still be computed."""

    def step(x, w, rows, places):
        for _ in range(20):
            x = torch.mm(x, w)
        found = x[rows], x[:, rows], x[places], x[rows, 3]  # choosing
        return *found, x.sum()

    fast = run_with_truth_values(step)
    (line,) = [row for row in lockstep.explain(fast).lines if "# choosing" in row["source"]]
    assert line["ops"]["aten::index.Tensor"] == 40 and line["wait_seconds"] == 0


def test_memory_of_others_that_nobody_computes_with_is_not_waited_for():
    """An op on it is complete before Python goes on, but not behind all that was asked before."""
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)

    def step(x, w):
        for _ in range(20):
            x = torch.mm(x, w)
        boxes = torch.from_numpy(array)
        area = boxes[:, 2] * boxes[:, 3]
        boxes.mul_(0.5)
        array[0, 0] += 1  # seen by what was asked for after it, and by nothing before
        return x, area, boxes + 1

    fast = lockstep.function(step, when="always")
    x, w = torch.randn(2, 400, 400, generator=torch.Generator().manual_seed(2)) / 20
    for call in range(12):
        if call == 6:
            lockstep.reset_stats(fast)
        before = array.copy()
        own = [result.clone() for result in fast(x, w)]
        after = array.copy()
        array[:] = before
        for mine, eager in zip(own, step(x, w), strict=True):
            assert torch.equal(mine, eager)
        assert (array == after).all()
    stats = lockstep.stats(fast)
    assert stats["eager_ops"] == 0
    assert stats["waits"] <= stats["calls"], "more than the one at the end of each call"


def test_little_of_memory_of_others_is_copied_instead_of_waited_for():
    """Pending ops read it as it was when they were asked, and Python may change it at once."""
    numbers = np.zeros(64, dtype=np.float32)
    tokens = np.zeros(8, dtype=np.int64)

    def step(x, table, w):
        for _ in range(20):
            x = torch.mm(x, w)
        table = table.detach().requires_grad_()
        outside = torch.from_numpy(numbers)[3:59].view(7, 8).t()  # neither aligned nor in rows
        seen = x[:8, :7] * outside
        part = torch.from_numpy(numbers)[3:59]
        scattered = torch.slice_scatter(part, x[0, :4], end=4)
        strided = torch.as_strided_copy(part, (4,), (2,), 1)  # of the memory, not of the part
        numbers[:] *= 2
        again = x[:8, :7] * outside
        chosen = torch.from_numpy(tokens)
        loss = F.cross_entropy(F.embedding(chosen, table) + seen.sum(), chosen)
        given = chosen.numpy()
        loss.backward()
        given[:] = (given + 1) % 5
        return x, seen, scattered, strided, again, table.grad, F.embedding(chosen, table * x[0, 0])

    fast = lockstep.function(step, when="always")
    generator = torch.Generator().manual_seed(2)
    x, w = torch.randn(2, 400, 400, generator=generator) / 20
    table = torch.randn(16, 5, generator=generator)
    for call in range(12):
        if call == 6:
            lockstep.reset_stats(fast)
        results = []
        for run in (fast, step):
            numbers[:] = np.arange(64) + call
            tokens[:] = np.arange(8) * (call + 1) % 5
            results.append(run(x, table, w))
        for own, eager in zip(*results, strict=True):
            assert torch.equal(own, eager)
            assert own.stride() == eager.stride() and own.storage_offset() == eager.storage_offset()
    stats = lockstep.stats(fast)
    assert stats["eager_ops"] == 0
    assert stats["waits"] <= stats["calls"], "more than the one at the end of each call"


def test_putting_by_known_truth_values_waits_for_nothing():
    """Also in the gradient of choosing by them."""

    def step(x, w, rows, places):
        x = x.detach().requires_grad_()
        h = x
        for _ in range(20):
            h = torch.mm(h, w)
        y, z = h.detach() * 1, h.detach() * 2
        values = z[rows] * 3
        y[rows] = values
        z.index_put_((places,), z[places], accumulate=True)
        (h[places] * 2).sum().backward()
        return y, z, x.grad

    stats = lockstep.stats(run_with_truth_values(step))
    assert stats["waits"] <= stats["calls"], "more than the one at the end of each call"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_putting_too_little_or_too_much_is_refused_as_in_eager(count):
    def step(x, w, rows, count):
        y = torch.mm(x, w)
        values = torch.mm(w, x)[:count, 0]
        try:
            y[rows] = values[:, None].expand(count, 4)
        except RuntimeError as error:
            return y, str(error)
        return y, "fine"

    fast = lockstep.function(step, when="always")
    x, w = torch.rand(2, 4, 4)
    for call in range(12):
        rows = torch.arange(4) < (2 if call < 6 else 1 + call % 3)
        now = 2 if call < 6 else count
        own, eager = fast(x, w, rows, now), step(x, w, rows, now)
        assert torch.equal(own[0], eager[0]) and own[1] == eager[1]


def test_choosing_by_truth_values_of_another_size_is_refused_as_in_eager():
    def step(x, w, rows):
        y = torch.mm(x, w)
        try:
            return y[rows]
        except IndexError as error:
            return y + 1, str(error)

    fast = lockstep.function(step, when="always")
    x, w, wrong = torch.rand(4, 4), torch.rand(4, 4), torch.rand(5) > 0.5
    for _ in range(4):
        assert torch.equal(fast(x, w, x[0] > 0.5), step(x, w, x[0] > 0.5))
    for _ in range(3):
        own, eager = fast(x, w, wrong), step(x, w, wrong)
        assert torch.equal(own[0], eager[0]) and own[1] == eager[1]


def test_what_cannot_change_a_kernel_or_its_error_waits_for_nothing():
    """Switches that are read above the hook, and ops that never raise by value."""

    def step(x, w):
        for _ in range(20):
            x = torch.mm(x, w)
        with torch.no_grad():
            total = torch.linalg.vector_norm(x)
        with torch.autograd.set_detect_anomaly(True):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(x, w.sigmoid())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss + total % 3
        with torch.enable_grad():
            return loss * 2

    fast = lockstep.function(step, when="always")
    x, w = torch.randn(2, 400, 400, generator=torch.Generator().manual_seed(2)) / 20
    for call in range(10):
        if call == 4:
            lockstep.reset_stats(fast)
        assert torch.equal(fast(x, w), step(x, w))
    stats = lockstep.stats(fast)
    assert stats["eager_ops"] == 0
    assert stats["waits"] <= stats["calls"], "more than the one at the end of each call"


def test_a_new_size_that_may_not_be_written_is_refused_where_eager_refuses_it():
    def step(x, index, values):
        caught = []
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            x.index_put_((index,), values)
        try:
            x.add_(values[:1])
        except RuntimeError as error:
            caught.append(str(error))
        return caught, [str(warning.message) for warning in seen]

    fast = lockstep.function(step, when="always")
    for n in (5, 5, 5, 6, 7):
        assert fast(torch.rand(n, 400), torch.arange(3), torch.rand(3, 400)) == ([], [])
    for n in (8, 9):
        spread = torch.rand(1, 400).expand(n, 400)
        arguments = torch.arange(3), torch.rand(1, 400).expand(3, 400)
        caught, seen = fast(spread, *arguments)
        assert len(caught) == len(seen) == 1
        assert (caught, seen) == step(spread, *arguments)
