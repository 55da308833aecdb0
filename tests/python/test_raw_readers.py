"""C++ that reads memory where no op is seen finds what was asked for before it."""

import _thread
import collections
import copy
import ctypes
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import lockstep
import pytest
import torch
from extensions import load
from test_session import run_code
from torch import nn
from torch.nn import functional as F

PACKAGE_ROOT = Path(lockstep.__file__).parents[1]
CALLS = 6
LARGE = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))


def outcomes(step):
    """What each call gives, or the name of what it raises."""
    found = []
    for call in range(CALLS):
        try:
            found.append(step(float(call)))
        except (RuntimeError, IndexError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def expect_the_same(make, levels=("strict", "default")):
    """`make()` gives a fresh step of a number."""
    expected = outcomes(make())
    for numerics in levels:
        step = lockstep.function(make(), numerics=numerics, when="always")
        assert outcomes(step) == expected, numerics


def busy(number):
    """A tensor behind some work: it is pending when Python goes on."""
    hidden = torch.full((300, 300), number)
    for _ in range(4):
        hidden = hidden @ LARGE * 1e-2
    return hidden * 0 + number


@torch.jit.script
def scripted_pool(x):
    return F.max_pool1d(x, 2)


def test_scripted_functions():
    def make():
        return lambda number: scripted_pool(busy(number)[None]).sum().item()

    expect_the_same(make)


@pytest.mark.parametrize("name", ["overload", "packet"])
def test_ops_by_name(name):
    op = torch.ops.aten.max_pool1d if name == "packet" else torch.ops.aten.max_pool1d.default

    def make():
        kept = torch.zeros(1, 8)

        def step(number):
            busy(number)
            kept.add_(1)  # has its memory, but not its value
            return op(kept, 2).tolist(), op(busy(number)[None], 2).sum().item()

        return step

    with torch.no_grad():
        expect_the_same(make)


class Derived(torch.Tensor):
    pass


class DerivedByNew(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        return super().__new__(cls, data)


class Sequence:
    def __init__(self, *values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


# Of two numbers in tensors a tensor: C++ reads them.
MADE_OF_NUMBERS = {
    "Tensor": lambda a, b: torch.Tensor([a, b]),
    "Tensor of a tuple": lambda a, b: torch.Tensor((a, b)),
    "Tensor of lists in lists": lambda a, b: torch.Tensor([[[[[a], [b]]]]]),
    "Tensor of vectors": lambda a, b: torch.Tensor([a[None], b[None]]),
    "Tensor of a deque": lambda a, b: torch.Tensor(collections.deque([a, b])),
    "Tensor of a sequence": lambda a, b: torch.Tensor(Sequence(a, b)),
    "FloatTensor": lambda a, b: torch.FloatTensor([a, b]),
    "DoubleTensor": lambda a, b: torch.DoubleTensor([[a], [b]]),
    "HalfTensor": lambda a, b: torch.HalfTensor([a, b]),
    "LongTensor": lambda a, b: torch.LongTensor([a.long(), b.long()]),
    "BoolTensor": lambda a, b: torch.BoolTensor([a > 2, b > 4]),
    "Tensor by name": lambda a, b: torch.Tensor(data=[a, b]),
    "derived": lambda a, b: Derived([a, b]),
    "derived, by __new__": lambda a, b: DerivedByNew([a, b]),
    "tensor of lists in lists": lambda a, b: torch.tensor([[[[a], [b]]]]),
    "tensor of a deque": lambda a, b: torch.tensor(collections.deque([a, b])),
    "tensor of a sequence": lambda a, b: torch.tensor([Sequence(a, b)]),
    "tensor of a UserList": lambda a, b: torch.tensor(collections.UserList([a, b])),
    "as_tensor of a deque": lambda a, b: torch.as_tensor(collections.deque([a, b])),
    "new of a deque": lambda a, b: a.new(collections.deque([a, b])),
    "new_tensor of lists in lists": lambda a, b: a.new_tensor([[[a, b]]]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MADE_OF_NUMBERS)
def test_tensors_made_of_numbers_in_tensors(name):
    made_of = MADE_OF_NUMBERS[name]

    def make():
        kept = torch.zeros(())

        def step(number):
            pending = busy(number)[0, 0]
            kept.add_(pending)  # has its memory, but not its value
            return made_of(pending, pending + 1).tolist(), made_of(kept, kept).tolist()

        return step

    with torch.no_grad():
        expect_the_same(make, levels=["strict"])


@pytest.mark.parametrize("runner", ["behind", "inplace"])
def test_tensors_made_of_numbers_in_tensors_of_another_thread(runner):
    """A thread that nothing is decorated in reads what another one's function has asked for."""
    found = []

    @lockstep.function(when="always", numerics="strict", runner=runner)
    def step(number):
        pending = busy(number)[0, 0]
        thread = threading.Thread(target=lambda: found.append(torch.tensor([pending]).item()))
        thread.start()
        thread.join()

    with torch.no_grad():
        for call in range(CALLS):
            step(float(call))
    assert found == [float(call) for call in range(CALLS)]


@pytest.mark.parametrize("make", [torch.Tensor, torch.FloatTensor, Derived])
def test_constructors_are_what_they_were(make):
    shared = torch.zeros(3)
    assert make(2, 3).shape == (2, 3)
    assert make(torch.Size([4])).shape == (4,)
    assert make([1, 2]).tolist() == [1, 2]
    assert make(shared).data_ptr() == shared.data_ptr()
    with pytest.raises(TypeError):
        make("text", "more")


@pytest.fixture(scope="module")
def extension():
    """The C++ of raw_extension.cpp."""
    return load("lockstep_test_extension")


@pytest.mark.parametrize("name", ["first", "first_of_constant", "first_of_twice", "op"])
def test_extensions(extension, name):
    op = torch.ops.lockstep_test_extension.first_of_twice
    read = op if name == "op" else getattr(extension, name)

    def make():
        kept = torch.zeros(8)

        def step(number):
            busy(number)
            kept.add_(1)  # has its memory, but not its value
            return read(kept), read(busy(number))

        return step

    expect_the_same(make)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_lengths_of_packed_sequences(name):
    """How many sequences there are at each step is read where no op is seen."""
    gates = {"lstm": 4, "gru": 3}.get(name, 1)

    def make():
        torch.manual_seed(0)
        weights = [torch.randn(gates * 4, 3), torch.randn(gates * 4, 4)]
        counts = torch.tensor([1, 1, 1, 1])
        first = torch.zeros(1, 3, 4)

        def step(number):
            data = busy(number)[:8, :3]
            total = busy(number)[0, 0].long() - int(number)  # 0
            counts.copy_(torch.tensor([3, 2, 2, 1]) + total)  # has its memory, but not its values
            hidden = [first, first] if name == "lstm" else first
            out = getattr(torch, name)(data, counts, hidden, weights, False, 1, 0.0, True, False)
            counts.fill_(1)
            return out[0].shape, out[0].sum().item(), out[1].sum().item()

        return step

    expect_the_same(make, levels=["strict"])  # cells round otherwise in default


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_cells_wait_for_nothing(kind):
    net = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)

    def step(x):
        net.zero_grad()
        net(x)[0].sum().backward()

    step = lockstep.function(step, when="always", numerics="strict", runner="behind")
    x = torch.randn(2, 5, 3)
    for _ in range(CALLS):
        step(x)
    lockstep.reset_stats(step)
    for _ in range(CALLS):
        step(x)
    assert lockstep.stats(step)["waits"] <= CALLS  # for the end of the call


def test_traced_functions():
    """The graph holds tensors, which it prints by ops that C++ asks for."""

    def make():
        kept = torch.zeros(8)

        def step(number):
            kept.copy_(busy(number)[0, :8])
            example = torch.ones(8)
            traced = torch.jit.trace(lambda x: x + kept, (example,))  # checks itself, too
            module = torch.jit.trace(nn.Hardtanh(), (kept,))
            texts = str(traced.graph), traced.graph.str(), [str(n) for n in traced.graph.nodes()]
            without_lines = [line.split("#")[0] for text in texts[:2] for line in text.split("\n")]
            return (
                without_lines,
                [text.split("#")[0] for text in texts[2]],
                traced(example).tolist(),
                module(kept).tolist(),
            )

        return step

    expect_the_same(make)


class Adder(nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.register_buffer("kept", kept)

    def forward(self, x):
        return x + self.kept


@pytest.mark.parametrize(
    "text",
    [
        lambda kept: repr(torch.jit.script([kept])),
        lambda kept: repr(torch.jit.script({"kept": kept})),
        lambda kept: torch.jit.script(Adder(kept))._c.dump_to_str(False, True, True),
    ],
    ids=["list", "dict", "module"],
)
def test_what_scripts_hold_is_printed(text):
    kept = torch.zeros(8)

    def make():
        def step(number):
            kept.copy_(busy(number)[0, :8])
            return text(kept)

        return step

    expect_the_same(make)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_tensors_pickled_by_torchscript(is_fresh):
    def make():
        kept = torch.zeros(8)

        def step(number):
            kept.copy_(busy(number)[0, :8])
            return torch._C._pickle_save(kept + 1 if is_fresh else kept)

        return step

    expect_the_same(make)


def resized(storage, tensor):
    storage.resize_(64)
    doubled = tensor * 2
    tensor.add_(1)
    storage.resize_(32)
    return doubled.tolist()


def a_byte_set(storage, tensor):
    storage[3] = 0x41
    return tensor.tolist()


@pytest.mark.parametrize(
    "look",
    [
        resized,
        a_byte_set,
        lambda storage, _: storage[3],
        lambda storage, _: ctypes.string_at(storage.data_ptr(), 32),
        lambda storage, _: bytes(torch.UntypedStorage(32).copy_(storage)),
        lambda storage, tensor: (storage.fill_(0) is storage, tensor.tolist()),
    ],
)
def test_storages_that_python_made(look):
    """Nobody was told of them when their tensors were given them."""

    def make():
        storage = torch.UntypedStorage(32)
        tensor = torch.empty(0).set_(storage, 0, (8,)).zero_()

        def step(number):
            tensor.copy_(busy(number + 1)[0, :8])
            return look(storage, tensor), tensor.tolist()

        return step

    expect_the_same(make)


def test_sparse_tensors():
    index = torch.arange(3000)

    def make():
        def step(number):
            values = busy(number).flatten()[:3000]
            where = torch.stack([index * 2, index]) + int(number)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.sparse_coo_tensor(where, values).to_dense().sum().item()

        return step

    expect_the_same(make)


def test_sobol_engine():
    def make():
        return lambda _: torch.quasirandom.SobolEngine(3, scramble=True, seed=3).draw(4).tolist()

    expect_the_same(make)


def saved_to_buffer(module):
    return module.save_to_buffer()


def saved_to_file(module):
    file = io.BytesIO()
    torch.jit.save(module, file)
    return file.getvalue()


@pytest.mark.parametrize("write", [saved_to_buffer, saved_to_file])
def test_scripted_modules_are_saved_as_they_are(write):
    def make():
        module = torch.jit.script(nn.Linear(4, 4))
        with torch.no_grad():
            module.weight.zero_()

        def step(number):
            busy(number)
            with torch.no_grad():
                module.weight.add_(1)
            return torch.jit.load(io.BytesIO(write(module))).weight.tolist()

        return step

    expect_the_same(make)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_generators_are_copied_as_they_are(duplicate):
    def make():
        generator = torch.Generator().manual_seed(3)

        def step(number):
            drawn = torch.randn(8, generator=generator)
            busy(number)
            return drawn.tolist(), torch.randn(8, generator=duplicate(generator)).tolist()

        return step

    expect_the_same(make)


def test_threads_that_are_started_bare():
    def make():
        def step(number):
            value, seen, done = busy(number), [], threading.Lock()
            done.acquire()

            def look():
                seen.append(value.sum().item())
                done.release()

            _thread.start_new_thread(look, ())
            done.acquire()
            return seen

        return step

    expect_the_same(make)


def test_handlers_of_signals_wait_for_the_op():
    """A program's handler may ask for ops while another one is being waited for."""

    def make():
        seen, weight = [], torch.zeros(3)
        latest = [torch.zeros(1)]

        def handle(*_):
            seen.append((latest[0].sum().item(), weight.sum().item()))

        def step(number):
            before = signal.signal(signal.SIGALRM, handle)
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-3)
                for _ in range(30):
                    latest[0] = busy(number)
                    weight.add_(1)
                result = latest[0].sum().item(), weight.tolist()
                while not seen:
                    pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            assert seen.pop()[0] in {0.0, number * 90000, (number - 1) * 90000}
            return result

        return step

    expect_the_same(make)


FORKS = """
import os, sys, torch, lockstep
x = torch.ones(4)
with lockstep.session():
    for _ in range(5):
        y = (x * 2).sum()
    child = os.fork()
    if child == 0:
        assert (x * 3).sum().item() == 12
if child == 0:
    sys.exit(7)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), y.item())
"""


def test_a_forked_child_leaves_the_session():
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout == "7 8.0\n", done.stderr


COMPUTING_FORKS = """
import os, select, sys, torch, lockstep
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())

@lockstep.function(when="always", numerics="strict")
def step(x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss

for _ in range(60):
    x = torch.randn(64, 8)
    step(x)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        with torch.no_grad():
            os.write(writing, repr(model(x).sum().item()).encode())
        os._exit(0)
    os.close(writing)
    if not select.select([reading], [], [], 20)[0]:
        os.kill(child, 9)
        sys.exit("a child hangs")
    os.waitpid(child, 0)
    os.close(reading)
print("all done")
"""


def test_forked_children_multiply_matrices():
    """Of threads that end, none holds a lock of the BLAS while the process forks."""
    done = run_code(COMPUTING_FORKS, OMP_NUM_THREADS="2")
    assert done.stdout == "all done\n", done.stderr


@pytest.mark.parametrize(
    "deviation",
    [
        lambda x: x.std(0),
        lambda x: x.var(0, keepdim=True),
        lambda x: torch.var_mean(x, 0)[0],
        lambda x: x.std(0, correction=3),
    ],
)
def test_sizes_of_which_pytorch_warns(deviation):
    values = torch.randn(16, 40)

    def make():
        sizes = iter((9, 9, 8, 7, 1, 2))

        def step(_):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                deviation((values * 2)[: next(sizes)])
            return [str(one.message) for one in seen]

        return step

    expect_the_same(make)


def index_out_of_range(make_index):
    def make():
        table = torch.arange(6.0).reshape(3, 2)

        def step(number):
            index = make_index(torch.full((2,), float("nan") if number > 3 else 1.0))
            try:
                table[index]
            except IndexError as error:
                return str(error)
            return None

        return step

    return make


def test_indices_made_of_nan():
    expect_the_same(index_out_of_range(lambda x: x.long()))


@pytest.mark.parametrize("name", ["fill", "masked_fill", "index_fill"])
def test_numbers_of_tensors_that_do_not_fit(name):
    def make():
        whole = torch.zeros(4, dtype=torch.int8)

        def step(number):
            value = torch.full((), 1000 if number > 3 else 5) * 1
            try:
                if name == "fill":
                    torch.fill(whole, value)
                elif name == "masked_fill":
                    whole.masked_fill(whole == 0, value)
                else:
                    whole.index_fill(0, torch.tensor([1]), value)
            except RuntimeError as error:
                return str(error)
            return None

        return step

    expect_the_same(make)


def add_a_part(x, number):
    return torch.addcmul(x, x, x, value=number)


@pytest.mark.parametrize(
    ("op", "dtype", "usual", "last"),
    [
        (lambda x, number: F.pad(x, (1, 1), value=number), torch.float16, (), 7e4),
        (lambda x, number: F.pad(x, (number, number)), torch.float32, (1, 2), 2**62),
        (F.celu, torch.float32, (0.3, -1.0, 2.0), 1e-40),
        (F.celu, torch.float32, (0.3, 1e-310), 1e-40),
        (F.celu, torch.float32, (0.3, True), False),
        (add_a_part, torch.uint8, (-129, 1e-8, -2), -0.5),
        (lambda x, number: torch.full_like(x, number), torch.float32, (1.0, 1 + 0j), 2j),
        (torch.pow, torch.float32, (2, 1 + 0j), 0.5),
        (torch.pow, torch.int64, (1, 0), 0.0),
    ],
    ids=[
        "too large",
        "too wide",
        "inverse too large",
        "inverse too large, not infinite",
        "false",
        "negative fraction",
        "imaginary",
        "real after complex",
        "real after whole",
    ],
)
def test_numbers_unlike_those_before(op, dtype, usual, last):
    """They are refused, or make results of another type, where they are asked for."""
    x = torch.ones(4, 5).to(dtype)

    def make():
        def step(value):
            try:
                result = op(x, value)
            except RuntimeError as error:
                return str(error)
            return result.dtype, result.tolist()

        return step

    numbers = (*usual, *usual, *usual, last, last, last)
    expected = [make()(number) for number in numbers]
    for numerics in ("default", "strict"):
        step = lockstep.function(make(), numerics=numerics, when="always")
        assert [step(number) for number in numbers] == expected, numerics


def test_modules_with_many_functions_are_watched_whole():
    """What pybind11 makes of a module's functions is one C function: there is room for many."""
    code = """
    import torch, lockstep
    from lockstep import _C
    owner = lambda f: type(getattr(f, "__self__", None)).__name__
    made = [f for f in vars(torch._C).values() if owner(f).startswith("pybind11")]
    are_watched = all(_C.install_door(f, "scope") for f in made)
    print(len(made) > 400, are_watched, torch._C._get_nnpack_enabled())
    """
    assert run_code(code).stdout.split() == ["True", "True", "True"]


# ---- lists that hold tensors, as indices


TABLE = torch.arange(200.0).view(2, 100)
INDEXED = {
    "x[0, [t]]": lambda x, t: x[0, [t]],
    "x[:, [t, t + 1]]": lambda x, t: x[:, [t, t + 1]],
    "x[[t % 2, 1], :]": lambda x, t: x[[t % 2, 1], :],
    "x[..., [t]]": lambda x, t: x[..., [t]],
    "x[0, (t, 3)]": lambda x, t: x[0, (t, 3)],
    "x[None, [[t % 2], [1]]]": lambda x, t: x[None, [[t % 2], [1]]],
    "x[0, [t]] = 1": lambda x, t: put(x.clone(), t, 1.0),
    "nested": lambda x, t: torch.nested.nested_tensor([[t, t], [t + 1]]).to_padded_tensor(0),
    "nested floats": lambda x, t: torch.nested.nested_tensor([[t * 0.5, t], [t]]).to_padded_tensor(
        0
    ),
    "nested bools": lambda x, t: torch.nested.nested_tensor([[t > 2], [t > 3]]).to_padded_tensor(0),
    "complex": lambda x, t: torch.nested.nested_tensor([[t + 1j]]).to_padded_tensor(0),
}


def put(x, t, value):
    x[0, [t]] = value
    return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("runner", ["behind", "inplace"])
@pytest.mark.parametrize("kind", ["pending", "stale"])
@pytest.mark.parametrize("form", INDEXED)
def test_lists_that_hold_tensors(form, kind, runner):
    def make():
        kept = torch.zeros((), dtype=torch.long)

        def step(number):
            position = busy(number).amax().long()
            if kind == "stale":  # it has memory, and an older value there
                position = kept.copy_(position)
            return INDEXED[form](TABLE, position).tolist()

        return step

    expected = outcomes(make())
    assert not any(isinstance(one, str) for one in expected), expected
    for numerics in ("strict", "default"):
        step = lockstep.function(make(), numerics=numerics, when="always", runner=runner)
        assert outcomes(step) == expected, numerics


def test_conversions_to_numbers_are_fetched_once():
    """The doors of these lists let ordinary ones pass, of which each is one fetch."""
    step = lockstep.function(
        lambda x: (int(x), float(x), bool(x), complex(x), range(9)[x]), when="always"
    )
    for _ in range(4):
        step(torch.tensor(3))
    lockstep.reset_stats(step)
    assert step(torch.tensor(3)) == (3, 3.0, True, 3 + 0j, 3)
    assert lockstep.stats(step)["fetches"] == 5


def test_tracing_that_refuses_a_pending_tensor():
    def make():
        weight = torch.randn(3, 3, requires_grad=True)

        def step(number):
            with torch.no_grad():
                weight.copy_(busy(number)[:3, :3])
            try:
                torch.jit.trace(lambda x: x @ weight, torch.ones(2, 3))
            except RuntimeError as error:
                return str(error)[:60]
            return None

        return step

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "Cannot insert a Tensor that requires grad" in make()(1.0)
        expect_the_same(make)


def test_the_address_of_a_pending_tensor():
    expect_the_same(lambda: lambda number: torch._C._data_address(busy(number)) != 0)
