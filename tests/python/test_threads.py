"""Calls, sessions and tensors on several threads, and the end of the process."""

import os
import queue
import threading

import lockstep
import pytest
import torch
from both_ways import bits
from test_session import run_code


def in_thread(run):
    """What `run()` returns on a thread of its own."""
    box = []
    thread = threading.Thread(target=lambda: box.append(run()))
    thread.start()
    thread.join()
    return box[0]


def test_a_small_op_on_another_threads_pending_value_waits_for_it():
    """Each session counts its events by itself: the other one is far ahead here."""
    options = {"when": "always", "numerics": "strict"}
    a = torch.randn(1500, 1500, generator=torch.Generator().manual_seed(0))
    box = []
    is_warm, is_ready, is_taken = (threading.Event() for _ in range(3))

    @lockstep.function(**options)
    def make(gives):
        total = ((a @ a) @ a).sum()
        if gives:
            box.append(total)
            is_ready.set()
            is_taken.wait(60)
        return total

    @lockstep.function(**options)
    def use(x, count, large):
        twice = x * 2
        for _ in range(count):
            large = large + 1
        return twice

    def other():
        try:
            for _ in range(5):
                use(torch.tensor(1.0), 200, torch.zeros(5000))
            is_warm.set()
            is_ready.wait(60)
            return use(box[0], 0, torch.zeros(5000))
        finally:
            is_taken.set()

    taken = []
    thread = threading.Thread(target=lambda: taken.append(other()))
    thread.start()
    is_warm.wait(60)
    for _ in range(3):
        make(False)
    total = make(True)
    thread.join()
    assert bits(taken[0]) == bits(total * 2)


def test_a_thread_that_made_calls_still_waits_for_those_of_others():
    asked, answered = queue.Queue(), queue.Queue()
    a = torch.randn(1500, 1500)

    @lockstep.function(when="always")
    def small(x):
        return x + 1

    def work():
        small(torch.ones(3))
        for tensor in iter(asked.get, None):
            try:
                answered.put(tensor.item())
            except RuntimeError as error:
                answered.put(error)

    thread = threading.Thread(target=work)
    thread.start()

    @lockstep.function(when="always", numerics="strict")
    def step():
        asked.put(((a @ a) @ a).sum())
        return answered.get(timeout=60)

    expected = ((a @ a) @ a).sum().item()
    assert [step() for _ in range(4)] == [expected] * 4
    asked.put(None)
    thread.join()


def test_a_call_keeps_its_settings_while_another_thread_calls_the_same_function():
    x = torch.randn(64, 64) * 0.1

    @lockstep.function(when="always")
    def step(x, other=None):
        y = x @ x
        if other:
            in_thread(other)
        return (y.exp() @ x).softmax(-1)

    def default():
        with lockstep.config(numerics="default"):
            return bits(step(x))

    for _ in range(3):
        default()
    lockstep._C.wait_for_kernels()
    fast, seen = default(), []
    with lockstep.config(numerics="strict"):
        strict = bits(step(x))
        for _ in range(4):
            seen.append(bits(step(x, default)))
    assert fast != strict, "else this test shows nothing"
    assert seen == [strict] * 4
    assert lockstep.stats(step)["reasons"]["function_busy"] == 4


@pytest.mark.parametrize("ask", [lockstep.explain, lockstep.graph_text, lockstep.reset])
def test_a_graph_is_not_shown_while_another_thread_runs_along_it(ask):
    @lockstep.function(when="always")
    def step(x, other=None):
        return x * 2, in_thread(other) if other else None

    def refused():
        try:
            ask(step)
        except lockstep.Error as error:
            return str(error)
        return None

    step(torch.ones(3))
    assert "runs" in step(torch.ones(3), refused)[1]
    assert in_thread(refused) is None


def test_a_session_that_its_thread_left_open_is_not_the_next_threads():
    left = []

    def leave():
        left.append(lockstep.session())
        left[0].__enter__()

    in_thread(leave)
    add = lockstep.function(lambda x: x + 1, when="always")

    def call():
        for _ in range(5):
            add(torch.ones(9))
        return lockstep.stats(add)["ops"]

    assert in_thread(call) == 5


def test_the_first_session_may_be_closed_before_one_within_it():
    first, second = lockstep.session(), lockstep.session()
    first.__enter__()
    second.__enter__()
    x = torch.ones(5000)
    for _ in range(100):
        x = x + 1
    first.close()
    with pytest.raises(lockstep.Error, match="runs now"):
        lockstep.reset(first)
    x = x + 1
    second.close()
    assert x[0].item() == 102
    lockstep.reset(first)


def test_what_runs_at_exit_in_an_open_session_ends():
    done = run_code(
        """
        import atexit, torch
        x = torch.ones(4)
        def report():
            return (x * 3 + 1).sum().item()
        atexit.register(lambda: print("reported", report()))  # runs after lockstep's own
        import lockstep
        lockstep.session().__enter__()
        for _ in range(200):
            report()
        """
    )
    assert done.stdout == "reported 16.0\n"


@pytest.mark.parametrize("calls", [3, 20])
def test_first_calls_at_exit_start_no_thread(calls, tmp_path):
    """A thread that compiles then would meet the end of the compiler's own globals."""
    code = """
    import atexit, sys, torch
    from pathlib import Path

    def report():
        x = torch.randn(200, 300)
        eager = step.__wrapped__(x)
        values = [step(x) for _ in range(int(sys.argv[1]))]
        assert all(abs(value / eager - 1) < 1e-4 for value in values)
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        print("reported", [name for name in names if name.startswith("lockstep")])

    atexit.register(report)  # runs after lockstep's own
    import lockstep

    @lockstep.function(when="always", runner="behind", numerics="default")
    def step(x):
        y = torch.nn.functional.gelu(x * 2 + 1).tanh().exp()
        z = torch.softmax(y, -1) * torch.sigmoid(x)
        w = torch.nn.functional.layer_norm(z, (300,)) + torch.log_softmax(x, -1)
        return w.sum().item()
    """
    assert run_code(code, str(calls), LOCKSTEP_CACHE=str(tmp_path)).stdout == "reported []\n"


def test_a_thread_in_a_call_goes_on_while_the_process_exits():
    code = """
    import atexit, threading, torch
    is_over = threading.Event()

    def finish():
        is_over.set()
        thread.join()
        print("joined", (w * 0).sum().item())

    atexit.register(finish)  # runs after lockstep's own
    import lockstep

    @lockstep.function(when="always", runner="behind")
    def step(x):
        for _ in range(20):
            x = torch.tanh(x @ w)
        return x.sum().item()

    w = torch.randn(300, 300)
    calls = threading.Semaphore(0)

    def work():
        x = torch.randn(300, 300)
        while not is_over.is_set():
            step(x)
            calls.release()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for _ in range(10):
        calls.acquire()
    """
    assert run_code(code).stdout == "joined 0.0\n"


def test_a_second_interpreter_has_been_there():
    code = """
    import _xxsubinterpreters as interpreters
    import torch, lockstep

    @lockstep.function(when="always", runner="behind", numerics="strict")
    def step(x):
        for _ in range(20):
            x = torch.tanh(x @ x)
        return x.sum().item()

    interpreters.destroy(interpreters.create())
    with torch.no_grad():
        x = torch.randn(400, 400)
        print(len({step(x) for _ in range(6)}))
    """
    assert run_code(code).stdout == "1\n"


def test_a_kernel_in_python_that_was_there_before_the_import_runs_where_it_is_asked_for():
    done = run_code(
        """
        import torch, warnings
        warnings.simplefilter("ignore")
        calls = []
        library = torch.library.Library("aten", "IMPL")
        library.impl("sin", lambda x: (calls.append(1), torch.cos(x))[1], "CPU")
        import lockstep
        a = torch.randn(1000, 1000)
        @lockstep.function(when="always")
        def count():
            before = len(calls)
            y = torch.sin(a @ a)
            return len(calls) - before
        print([count() for _ in range(4)])
        """
    )
    assert done.stdout == "[1, 1, 1, 1]\n"


# ---- threads that take turns: as in eager, what one has asked for is done when the next goes on


LARGE = torch.ones(1500, 1500)


def slowly():
    """Zero, some time later."""
    return (LARGE @ LARGE @ LARGE)[0, 0] * 0


def in_both(run):
    """What `run(decorate)` gives eagerly, and in lockstep behind."""

    def decorate(fn):
        return lockstep.function(fn, when="always", runner="behind", numerics="strict")

    return run(lambda fn: fn), run(decorate)


@pytest.mark.parametrize("look", ["op", "item", "numpy", "draw", "state", "write"])
def test_the_main_thread_waits_for_calls_of_others(look):
    """It ran before the import, and is in no call."""
    looks = {
        "op": lambda p: (p * 2).sum().item(),
        "item": lambda p: p[0, 0].item(),
        "numpy": lambda p: p.numpy().sum().item(),
        "draw": lambda p: torch.rand(1).item(),
        "state": lambda p: torch.get_rng_state().tolist(),
        "write": lambda p: p.mul_(2).sum().item(),
    }

    def run(decorate):
        asked, seen, out, others = queue.Queue(), queue.Queue(), [], []
        p = torch.zeros(50, 50)
        torch.manual_seed(0)

        @decorate
        def train():
            late = slowly()
            p.add_(late + 1)
            drawn = torch.rand(4) + late
            asked.put(None)
            seen.get(timeout=60)
            return drawn

        def work():
            for _ in range(5):
                others.append(train().sum().item())

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(5):
            asked.get(timeout=60)
            out.append(looks[look](p))
            seen.put(None)
        thread.join()
        return out, others, p.sum().item()

    eager, fast = in_both(run)
    assert fast == eager


@pytest.mark.parametrize("look", ["draw", "state"])
def test_two_calls_that_draw_by_turns(look):
    def run(decorate):
        drawn, seen, out = queue.Queue(), queue.Queue(), []
        torch.manual_seed(0)

        @decorate
        def first():
            t = torch.rand(8) + slowly()
            u = t * 0 + torch.rand(8)
            drawn.put(None)
            seen.get(timeout=60)
            return t + u

        @decorate
        def second(x):
            x = x * 2
            drawn.get(timeout=60)
            what = torch.rand(2) if look == "draw" else torch.get_rng_state()
            seen.put(None)
            return what, x

        for i in range(5):
            thread = threading.Thread(target=lambda: out.append(first().tolist()))
            thread.start()
            out.append([t.tolist() for t in second(torch.ones(3) * i)])
            thread.join()
        return sorted(out, key=str)

    eager, fast = in_both(run)
    assert fast == eager


def test_a_finalizer_waits_for_calls_of_others():
    """It runs at a random place of a call, here with a value that another call has not computed."""

    class Doubles:
        def __init__(self, tensor):
            self.tensor = tensor

        def __del__(self):
            log.append(self.tensor * 2)

    log = []

    def run(decorate):
        log.clear()
        made, taken = queue.Queue(), queue.Queue()

        @decorate
        def produce(i):
            made.put((torch.full((50, 50), float(i)) + slowly()).detach())
            taken.get(timeout=60)

        @decorate
        def consume():
            x = torch.ones(30)
            holder = Doubles(made.get(timeout=60))
            del holder
            taken.put(None)
            return x + 1

        for i in range(5):
            thread = threading.Thread(target=produce, args=(i,))
            thread.start()
            consume()
            thread.join()
        return [bits(tensor) for tensor in log]

    eager, fast = in_both(run)
    assert len(eager) == 5 and fast == eager


def test_two_calls_write_rows_of_one_tensor():
    """The second waits for the first one's events; meanwhile that one asks for more."""

    def run(decorate):
        rows, sums = torch.zeros(2, 50), []

        @decorate
        def first(asked, near, done):
            rows[0].add_(slowly() + 1)
            asked.set()
            near.wait(timeout=60)
            for _ in range(1000):
                os.sched_yield()  # most likely the other one waits now
            rows[0].add_(slowly() + 1)
            done.wait(timeout=60)
            return rows[0].sum().item()

        @decorate
        def second(asked, near, done):
            x = torch.ones(3) * 2
            asked.wait(timeout=60)
            near.set()
            rows[1].add_(1)
            done.set()
            return x

        for _ in range(5):
            events = [threading.Event() for _ in range(3)]
            thread = threading.Thread(target=second, args=events)
            thread.start()
            sums.append(first(*events))
            thread.join()
        return sums, rows.sum().item()

    eager, fast = in_both(run)
    assert fast == eager


@pytest.mark.parametrize("waits", ["with", "for"])
def test_the_main_thread_that_waits_in_c_code(waits):
    """Nothing tells it there of a call that has begun meanwhile."""

    def run(decorate):
        handed, out = queue.SimpleQueue(), []
        given = []

        @decorate
        def produce(hand_over, rest):
            x = torch.ones(50, 50) + slowly()
            hand_over(x)
            rest.wait(timeout=60)
            return x.sum()

        at_once = threading.Event()
        at_once.set()
        first = threading.Thread(target=produce, args=(lambda x: None, at_once))
        first.start()
        first.join()
        for _ in range(4):
            lock, waiting, rest = threading.Lock(), threading.Event(), threading.Event()

            def work(lock=lock, waiting=waiting, rest=rest):
                lock.acquire()
                waiting.set()
                for _ in range(1000):
                    os.sched_yield()  # most likely the main thread waits in C code now

                def hand_over(x):
                    given.append(x)
                    handed.put(x)
                    lock.release()

                produce(hand_over, rest)

            thread = threading.Thread(target=work)
            thread.start()
            waiting.wait(timeout=60)
            torch.ones(3) + 1  # most likely there are no calls now
            if waits == "with":
                with lock:
                    y = given[-1] + 1
                out.append(bits(y))
            else:
                for x in iter(handed.get, None):
                    y = x + 1
                    break
                out.append(bits(y))
            rest.set()
            thread.join()
        return out

    eager, fast = in_both(run)
    assert fast == eager


def test_a_forked_child_waits_for_nothing_of_other_threads():
    code = """
    import os, signal, threading, torch, lockstep
    torch.set_num_threads(1)
    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(20)])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    x = torch.randn(64, 128)

    @lockstep.function(when="always", runner="behind")
    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    steps, is_over = [], False
    def train():
        while not is_over:
            step()
            steps.append(None)

    thread = threading.Thread(target=train)
    thread.start()
    codes = set()
    for child in range(12):
        while len(steps) < 5 + child:
            os.sched_yield()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for p in net.parameters():
                p.detach().numpy().sum()
                p.detach().clone().add_(1).sum().item()
            os._exit(0)
        codes.add(os.waitpid(child, 0)[1])
    is_over = True
    thread.join()
    print(codes)
    """
    assert run_code(code).stdout.strip() == "{0}"


@pytest.mark.parametrize("runner", ["behind", "yielding", "inplace"])
def test_a_child_forked_by_another_thread_finds_what_was_asked_for(runner):
    code = """
    import os, signal, sys, threading, torch, lockstep
    weight, x = torch.randn(64, 64) / 8, torch.randn(16, 64)
    kept = [None]

    def step(x):
        for _ in range(20):
            x = torch.sin(x @ weight)
        kept[0] = x
        for _ in range(20):
            x = torch.sin(x @ weight)

    step(x)
    expected = kept[0].clone()
    codes, is_over = set(), threading.Event()

    def fork():
        for _ in range(60):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                os._exit(not torch.allclose(kept[0], expected, 1e-3, 1e-4))
            codes.add(os.waitpid(child, 0)[1])
        is_over.set()

    decorated = lockstep.function(step, when="always", runner=sys.argv[1])
    thread = threading.Thread(target=fork)
    thread.start()
    while not is_over.is_set():
        decorated(x)
    thread.join()
    print(codes)
    """
    assert run_code(code, runner).stdout.strip() == "{0}"


def test_hooks_of_a_fork_ask_for_ops():
    code = """
    import os, torch
    hooked = []
    os.register_at_fork(before=lambda: hooked.append(torch.ones(3) * len(hooked)))
    import lockstep

    def step(x):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return hooked[-1] + x

    step = lockstep.function(step, when="always", runner="behind")
    print([step(torch.ones(3)).sum().item() for _ in range(5)])
    """
    assert run_code(code).stdout.strip() == "[3.0, 6.0, 9.0, 12.0, 15.0]"


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_child_forked_beside_threads_ends_none(is_alone):
    """What others held at the fork, the BLAS takes as a thread ends: so none begins there."""
    code = """
    import os, signal, sys, threading, torch, lockstep
    net = torch.nn.Linear(256, 256)
    options = {"when": "always", "numerics": "strict", "runner": sys.argv[2]}
    step = lockstep.function(lambda x: net(x).square().sum(), **options)
    x = torch.randn(64, 256)
    expected = {step(x).item() for _ in range(4)}
    rest = threading.Event()
    thread = threading.Thread(target=rest.wait)
    if sys.argv[1] == "False":
        thread.start()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        found = {step(x).item() for _ in range(4)}
        tasks = "/proc/self/task"
        names = [open(f"{tasks}/{task}/comm").read() for task in os.listdir(tasks)]
        os._exit(10 * (found != expected) + ("lockstep-runner\\n" in names))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    rest.set()
    print(code)
    """
    for runner in ("behind", "yielding"):
        expected = "1" if is_alone else "0"
        assert run_code(code, str(is_alone), runner).stdout.strip() == expected


def test_a_late_runner_uses_as_many_threads_as_its_leader():
    """What another thread set last is no setting of this one."""
    code = """
    import threading, torch, lockstep
    torch.set_num_threads(2)
    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    x.sum()  # this thread has its number
    thread = threading.Thread(target=lambda: torch.set_num_threads(1))
    thread.start()
    thread.join()

    @lockstep.function(when="always", runner="behind", numerics="strict")
    def step():
        return x.cumsum(0), x.sum(), x.view(4, -1).norm()

    def words():
        return [value.view(torch.int32).sum().item() for value in step()]

    eager = [value.view(torch.int32).sum().item() for value in step.__wrapped__()]
    print(torch.get_num_threads(), all(words() == eager for _ in range(4)))
    torch.set_num_threads(1)
    one = [value.view(torch.int32).sum().item() for value in step.__wrapped__()]
    print(one != eager)
    """
    assert run_code(code).stdout.split() == ["2", "True", "True"]


@pytest.mark.parametrize("kilobytes", [64, 256, 512, 1024])
def test_threads_with_small_stacks_run_eagerly(kilobytes):
    step = lockstep.function(lambda x: (x * 2 + 1).sum().item(), when="always")
    found = []
    before = threading.stack_size(kilobytes * 1024)
    try:
        thread = threading.Thread(
            target=lambda: found.extend(step(torch.ones(4)) for _ in range(9))
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert found == [12.0] * 9
    assert lockstep.stats(step)["reasons"].get("small_stack", 0) == (9 if kilobytes <= 512 else 0)
