"""Two runs with the same seed give the same bits, also where numerics is not strict."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import lockstep
import pytest
import torch
from lockstep import _C, Error
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "bench")]

import bench_programs  # noqa: E402

from samples.common.driver import Copy  # noqa: E402

STEPS = 4


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))


def run_all(runner):
    """Prints a digest of all that each program has and gave back after its last step."""

    def decorate(step):
        options = {"numerics": "default", "deterministic": True, "when": "always"}
        return lockstep.function(step, runner=runner, **options)

    for name in bench_programs.NAMES:

        def make(size, seed, name=name):
            return bench_programs.make(name, size, seed)

        copy = Copy(make, "small", 0, decorate)
        for index in range(STEPS):
            copy.advance(index)
        assert lockstep.stats(copy.step)["graph_ops"] > 0
        digest = hashlib.sha256()
        for key, value in sorted(copy.state().items()):
            is_tensor = isinstance(value, torch.Tensor)
            bits = value.detach().contiguous().numpy().tobytes() if is_tensor else str(value)
            digest.update(f"{key}{bits}".encode())
        print(name, digest.hexdigest())


def start(code, cache):
    path = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {path!r}); import test_deterministic as t; {code}"
    environment = {**os.environ, "LOCKSTEP_CACHE": str(cache)}
    command = [sys.executable, "-c", code]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def output_of(process):
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def digests(tmp_path_factory):
    """Of a process with kernels behind the leading thread, and of one with kernels in place."""
    processes = [
        start(f"t.run_all({runner!r})", tmp_path_factory.mktemp(runner))
        for runner in ("behind", "inplace")
    ]
    return [dict(map(str.split, output_of(one).splitlines())) for one in processes]


@pytest.mark.parametrize("name", bench_programs.NAMES)
def test_bits_do_not_depend_on_which_thread_was_faster(name, digests):
    """Nor on which ops wait together, or on when a kernel has been compiled."""
    behind, in_place = digests
    assert behind[name] == in_place[name]


def train(steps, **options):
    """Convolutions, products and elementwise chains; all bits of the end as a digest."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 8, 1),
        nn.Sigmoid(), nn.Flatten(), nn.Linear(8 * 256, 64), nn.Tanh(), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters())

    @lockstep.function(numerics="default", **options)
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y) * 0.5
        loss.backward()
        optimizer.step()
        return loss.tanh().item()

    digest = hashlib.sha256()
    for _ in range(steps):
        digest.update(str(step(torch.randn(8, 3, 16, 16), torch.randint(4, (8,)))).encode())
    for tensor in net.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest(), _C.fusion_statistics()


def run(cache, steps, **options):
    return output_of(start(f"t.print_digest({steps}, **{options!r})", cache)).split()[-1]


def print_digest(steps, **options):
    print(train(steps, **options)[0])
    _C.wait_for_kernels()


@pytest.mark.parametrize("norm", [torch.norm, lambda x: torch._foreach_norm([x])[0]])
def test_bits_do_not_depend_on_what_is_at_rest(norm):
    """PyTorch's kernel on the leading thread and the runner's own differ in the last bits."""
    torch.manual_seed(2)
    w, large = torch.randn(64, 64), torch.randn(600, 600)

    @lockstep.function(when="always", numerics="default", deterministic=True)
    def step(waits):
        busy = large @ large  # takes the runner a while
        w.mul_(1.0)
        if waits:
            busy.sum().item(), w.sum().item()
        return norm(w)

    found = [step(i % 2 == 1).item() for i in range(20)]
    assert len(set(found[8:])) == 1


def test_with_a_cold_cache(tmp_path):
    first = run(tmp_path / "one", 12, when="auto", deterministic=True)
    assert run(tmp_path / "other", 12, when="auto", deterministic=True) == first
    assert not list(tmp_path.glob("*/kernel-choices*")), "nothing is measured"
    assert run(tmp_path / "one", 12, when="always", deterministic=True) == first  # a warm one


def test_with_a_warm_cache(tmp_path):
    """Without the option, as soon as everything has been measured and compiled once."""
    run(tmp_path, 60, when="always")
    assert list(tmp_path.glob("kernel-choices*"))
    first = run(tmp_path, 12, when="always")
    for _ in range(2):
        assert run(tmp_path, 12, when="always") == first


def test_kernels_are_there_from_the_first_call_on():
    before = _C.fusion_statistics()["single_events"]
    _, statistics = train(4, when="always", deterministic=True)
    assert statistics["single_events"] == before, "an op waited for its kernel"
    assert statistics["groups"] > 0


def test_auto_does_not_measure():
    @lockstep.function(when="auto", numerics="default", deterministic=True)
    def step(x):
        return (x * 2).exp().sum()

    for _ in range(200):
        step(torch.ones(100))
    assert lockstep.stats(step)["reasons"].keys() <= {"tracing"}
    assert not lockstep.explain(step).auto["is_auto"]


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False)])
def test_environment(monkeypatch, text, value):
    monkeypatch.setenv("LOCKSTEP_DETERMINISTIC", text)
    assert lockstep.knobs.current({})["deterministic"] is value


def test_bad_values(monkeypatch):
    with pytest.raises(Error, match="deterministic='yes' cannot be: use one of False, True"):
        lockstep.function(lambda: 0, deterministic="yes")
    monkeypatch.setenv("LOCKSTEP_DETERMINISTIC", "maybe")
    with pytest.raises(Error, match="LOCKSTEP_DETERMINISTIC.*deterministic='maybe' cannot be"):
        lockstep.knobs.current({})


def on_new_sizes(x, number):
    for k in range(12):
        torch.fft.rfft(x[k:], dim=0)  # its results are learned, not inferred
    return torch.softmax(x * 1.7 + 0.3, -1).exp().tanh()


def in_another_mode(x, number):
    with torch.set_grad_enabled(number not in (5, 7)):
        return torch.sigmoid(x[:60] * 1.3).tanh()


@pytest.mark.parametrize("step", [on_new_sizes, in_another_mode])
def test_bits_do_not_depend_on_what_the_process_has_met(step):
    def run():
        torch.manual_seed(0)
        fn = lockstep.function(step, numerics="default", deterministic=True, when="always")
        sizes = (60, 60, 60, 70, 80, 90, 60, 70)
        return [fn(torch.randn(n, 33), number) for number, n in enumerate(sizes)]

    first = run()
    for _ in range(2):
        for a, b in zip(first, run(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("alpha", [0.1, 3, -2.5])
def test_bits_do_not_depend_on_what_is_there_already(alpha, deterministic):
    """Where an operand is at rest, small ops run at once; 24 values are a vector and a rest."""

    def run(reads):
        torch.manual_seed(0)
        total = torch.randn(24)

        @lockstep.function(numerics="default", deterministic=deterministic, when="always")
        def step(x):
            mean = x.mean()
            if reads:
                mean.item()
            total.add_(mean, alpha=alpha)
            total.sub_(mean * 0.7, alpha=alpha)

        for _ in range(14):
            step(torch.randn(128))
            _C.wait_for_kernels()
        return total

    run(reads=True)  # so that the process has met all
    assert torch.equal(run(reads=True), run(reads=False))
