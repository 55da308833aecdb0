"""Point 7, first part: autocast, layouts, dtypes, kinds of tensors, other operators and callees."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import batch, busy, small_net, train
from expected_reasons import EXPECTED
from kit import Case, check
from torch import nn

item = pytest.mark.item


@item("7.autocast")
@pytest.mark.parametrize("cache", [True, False])
def test_autocast_with_grad_scaler(cache):
    def make(run):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

        def step(x, labels, is_infinite):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
                hidden = net[:3](x)
                with torch.autocast("cpu", enabled=False):
                    exact = hidden.float() @ hidden.float().T
                loss = F.cross_entropy(net[3:](hidden), labels) + exact.mean()
                loss = loss * (float("inf") if is_infinite else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return hidden, loss, norm

        inputs = lambda n: (*batch(), n in (2, 4))  # noqa: E731
        return Case(step, inputs, net=net, optimizer=optimizer, scaler=scaler)

    check(make, calls=8)


@item("7.autocast")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_within_a_kernel(dtype):
    """Autocast lets these ops pass, and the products that their kernels ask for do not."""

    def make(run):
        def step(x, is_on):
            with torch.autocast("cpu", dtype, enabled=is_on):
                inverse = torch.linalg.pinv(x)
                return inverse, inverse.float().sum()

        return Case(step, lambda n: (torch.randn(200, 200), n % 3 > 0))

    check(make, calls=8)


@item("7.channels-last")
def test_channels_last():
    def make(run):
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 4, 1),
        ).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(image):
            optimizer.zero_grad()
            image = image.contiguous(memory_format=torch.channels_last)
            out = net(image)
            up = F.interpolate(out, scale_factor=2.0, mode="bilinear")
            up.square().mean().backward()
            optimizer.step()
            return out, up, image, net[:2](image).contiguous(), torch.empty_like(out).fill_(1)

        return Case(step, lambda n: (torch.randn(2, 3, 8, 8),), net=net, optimizer=optimizer)

    shots = check(make)
    assert shots[-1]["result"][1]["stride"] == (64, 1, 16, 4)


def _train_in(dtype):
    def make(run):
        net = small_net().to(dtype)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        return Case(
            lambda x, y: train(net, optimizer, x.to(dtype), y), batch, net=net, optimizer=optimizer
        )

    return make


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.bfloat16, marks=item("7.bfloat16")),
        pytest.param(torch.float64, marks=item("7.float64")),
        pytest.param(torch.float16, marks=item("7.float64")),
    ],
)
def test_training_in_other_float_types(dtype):
    check(_train_in(dtype))


@item("7.complex")
def test_complex():
    def make(run):
        weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))

        def step(x, labels):
            signal = torch.fft.fft(x) @ weight
            turned = signal.conj() * signal.real + signal.imag.neg() * 1j
            kept = signal.mH.conj_physical()
            part = turned.conj()[1:]
            with torch.no_grad():
                weight.conj().mul_(0.9)
                weight.real.add_(0.01)
            loss = torch.view_as_real(torch.fft.ifft(turned)).square().sum()
            loss.backward()
            return turned, kept, part, signal.imag, torch.conj(x + 0j)._neg_view(), loss

        return Case(step, batch, weight=weight)

    check(make)


@item("7.complex")
def test_complex_without_writes_to_parameters():
    def make(run):
        weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))
        optimizer = torch.optim.Adam([weight], lr=0.01)

        def step(x, labels):
            optimizer.zero_grad()
            signal = torch.fft.fft(x) @ weight
            turned = signal.conj() * signal.real + signal.imag.neg() * 1j
            loss = torch.view_as_real(torch.fft.ifft(turned)).square().sum() + signal.abs().sum()
            loss.backward()
            optimizer.step()
            return turned, signal.mH, turned.conj()[1:], signal.imag, torch.angle(signal), loss

        return Case(step, batch, weight=weight, optimizer=optimizer)

    check(make)


@item("7.integer")
def test_integer():
    def make(run):
        table = torch.arange(40, dtype=torch.int32).reshape(5, 8)
        counts = torch.zeros(3, dtype=torch.int64)

        def step(x, labels):
            small = (x * 10).to(torch.int8)
            counts.add_(torch.bincount(labels, minlength=3))
            picked = table[labels].to(torch.int16) << 2
            found = torch.unique(labels, return_counts=True)
            overflow = small * 50 + torch.tensor(120, dtype=torch.uint8)
            return small // 3, small % 4, picked, found, overflow, labels.cumsum(0), x.argsort(1)

        return Case(step, batch, counts=counts)

    check(make, share=0.8)  # the sizes of bincount and unique depend on the data


@item("7.integer")
def test_numbers_in_lists_are_told_apart_by_type():
    """Equal bits: True and 1, 0 and 0.0. What is small may run on the leading thread."""

    def make(run):
        whole = torch.arange(9000)

        def step(number):
            made = [
                torch._foreach_add([given], [number])[0]
                for given in (whole % 2 == 0, whole, whole.float())
            ]
            try:
                torch._foreach_add_([whole, whole], [number, number])
            except RuntimeError as error:
                return made, str(error)
            return made, "no error"

        numbers = [True] * 3 + [1] * 3 + [0] * 3 + [0.0] * 3 + [False] * 3
        return Case(step, lambda n: (numbers[n % len(numbers)],), whole=whole)

    check(make, calls=30, share=None)


@item("7.bool")
def test_bool():
    def make(run):
        def step(x, labels):
            mask = (x > 0) & ~(x > 1) | (labels == 1)[:, None]
            mask[0] ^= True
            chosen, filled = x[mask], x.masked_fill(mask, -1)
            return (
                mask,
                chosen,
                filled,
                mask.any(1),
                mask.all(),
                mask.sum(),
                torch.where(mask, x, 0),
            )

        return Case(step, batch)

    check(make, share=0.8)  # the size of x[mask] depends on the data


@item("7.empty-tensors")
def test_empty_tensors():
    def make(run):
        layer = nn.Linear(6, 3)

        def step(x, labels, rows):
            none = x[:rows]
            out = layer(none)
            out.sum().backward()
            joined = torch.cat([none, x, torch.empty(0)])
            return (
                out,
                joined,
                none.mean(),
                none.sum(0),
                x[labels > 9],
                torch.zeros(0, 3).prod(),
                out.T,
            )

        return Case(step, lambda n: (*batch(), n % 2), layer=layer)

    check(make, calls=8)


@item("7.zero-dim-tensors")
def test_zero_dim_tensors():
    def make(run):
        scale = nn.Parameter(torch.tensor(0.5))
        rate = torch.tensor(0.01)
        optimizer = torch.optim.Adam([scale], lr=rate, capturable=False, foreach=False)

        def step(x, labels):
            optimizer.zero_grad()
            loss = (x * scale).sum() + scale**2 + x.sum() * torch.tensor(2)
            loss.backward()
            optimizer.step()
            rate.mul_(0.9)
            mixed = [x[0, 0] * 2.5, x[0, 0].double() * x, torch.tensor(3) * scale, x.mean()[None]]
            return loss, mixed, x[1, 2].clamp_(0, 1), torch.stack([loss, loss])

        return Case(step, batch, scale=scale, rate=rate, optimizer=optimizer)

    check(make)


@item("7.sparse")
@pytest.mark.parametrize("layout", ["coo", "csr", "embedding"])
def test_sparse(layout):
    def make(run):
        table = nn.Embedding(7, 6, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())

        def step(x, labels):
            dense = torch.relu(busy(x)[:5, :6] * x)
            if layout == "embedding":
                optimizer.zero_grad()
                (table(labels) * x).sum().backward()
                optimizer.step()
                return dense
            sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
            return sparse, sparse @ x.T, (sparse * 2).to_dense(), dense.sum()

        return Case(step, batch, table=table)

    check(make, reason=EXPECTED["sparse"])


@item("7.quantized")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantized():
    def make(run):
        def step(x, labels):
            work = busy(x)[:5, :6] * x
            coarse = torch.quantize_per_tensor(work, 0.1, 10, torch.quint8)
            shifted = coarse.dequantize() + 1
            return coarse, coarse.int_repr(), shifted @ x.T, work.sum()

        return Case(step, batch)

    check(make, reason=EXPECTED["quantized"])


class Named(torch.Tensor):
    """A subclass by __torch_function__ alone."""


class Counted(torch.Tensor):
    """A subclass with __torch_dispatch__, which wraps a plain tensor and counts its ops."""

    seen = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))

        def unwrap(value):
            return value.inner if isinstance(value, Counted) else value

        out = func(*map(unwrap, args), **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


@item("7.tensor-subclasses")
@pytest.mark.parametrize("kind", ["function", "dispatch"])
def test_tensor_subclasses(kind):
    def make(run):
        Counted.seen = []

        def step(x, labels):
            work = busy(x)[:5, :6] * x
            wrapped = work.as_subclass(Named) if kind == "function" else Counted(work)
            out = (wrapped * 2 + x).tanh()
            if kind == "dispatch":
                return type(out).__name__, out.inner, work.sum()
            return out, out[1:], type(out.sum()).__name__, work.sum()

        return Case(step, batch, seen=lambda: Counted.seen)

    check(make, reason=EXPECTED["tensor subclass"])


@item("7.meta-device")
def test_meta_device():
    def make(run):
        skeleton = nn.Linear(6, 3, device="meta")

        def step(x, labels):
            out = skeleton(x.to("meta"))
            with torch.device("meta"):
                made = torch.ones(3, 4)
            return out.shape, made @ made.T, out, busy(x).sum()

        return Case(step, batch)

    check(make, reason=EXPECTED["meta device"])


@pytest.fixture
def custom_ops():
    """Two operators in Python: one functional with a backward, one that writes its argument."""
    log = []

    @torch.library.custom_op("fidelity::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        log.append(("scaled", float(x.sum())))
        return torch.from_numpy(x.detach().numpy() * factor).to(x.dtype)

    @torch.library.custom_op("fidelity::bump", mutates_args={"x"})
    def bump(x: torch.Tensor) -> None:
        log.append("bump")
        x.detach().numpy()[...] += 1

    scaled.register_fake(lambda x, factor: torch.empty_like(x))
    scaled.register_autograd(
        lambda ctx, grad: (grad * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    return scaled, bump, log


@item("7.other-namespaces")
def test_custom_ops_in_python(custom_ops):
    scaled, bump, log = custom_ops

    def make(run):
        log.clear()
        weight, state = nn.Parameter(torch.randn(6, 6)), torch.zeros(5, 6)

        def step(x, labels):
            out = scaled(busy(x)[:5, :6] * x @ weight, 1.5)
            bump(state)
            state.add_(out.detach())
            out.sum().backward()
            return out, torch.ops.fidelity.scaled(out, 2.0).sum()

        return Case(step, batch, weight=weight, state=state, log=log)

    check(make, reason=EXPECTED["python custom op"])


@item("7.other-namespaces")
def test_ops_of_other_namespaces():
    """Operators outside of aten that PyTorch ships with kernels of its own: prims and mkldnn."""

    def make(run):
        def step(x, labels):
            work = busy(x)[:5, :6] * x
            made = torch.ops.prims.sin(work) + torch.ops.prims.broadcast_in_dim(
                work[0], (5, 6), (1,)
            )
            linear = torch.ops.mkldnn._linear_pointwise(work, x, None, "relu", [], "")
            return made, linear

        return Case(step, batch)

    check(make, reason=EXPECTED["other namespace"])


@pytest.fixture
def nesting_ops():
    """Operators whose arguments hold tensors in lists of lists, dicts and tuples."""
    library = torch.library.Library("fidelity_nesting", "DEF")
    library.define("total(Tensor[][] rows, Tensor x) -> Tensor")
    library.define("bump(Tensor(a!)[][] rows, Tensor by) -> ()")
    library.define("chosen(Dict(str, Tensor) named, (Tensor, Tensor) pair, Tensor x) -> Tensor")
    library.impl("total", lambda rows, x: sum(sum(row) for row in rows) + x, "CPU")
    library.impl("bump", lambda rows, by: [t.add_(by) for row in rows for t in row] and None, "CPU")
    library.impl("chosen", lambda named, pair, x: named["a"] * pair[0] + pair[1] * x, "CPU")
    yield torch.ops.fidelity_nesting
    library._destroy()


@item("7.other-namespaces")
def test_ops_whose_tensors_are_nested_in_their_arguments(nesting_ops):
    def make(run):
        state = torch.zeros(6, 6)

        def step(x, labels):
            work = busy(x)[:6, :6]
            parts = [work * 2, work + 1]
            nesting_ops.bump([[parts[0]], [state]], work[:1] * 0.5)
            made = nesting_ops.total([parts, [work, state]], work * 3)
            state.mul_(0.5).add_(made)
            return nesting_ops.chosen({"a": made * 2}, (work.sin(), parts[1]), work), made, parts

        return Case(step, batch, state=state)

    check(make, reason=EXPECTED["python custom op"])


@item("7.other-namespaces")
def test_collectives_over_lists_of_tensors():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:

        def make(run):
            def step(x, labels):
                work = busy(x)[:6, :6]
                gathered, scattered = [torch.zeros(6, 6)], torch.zeros(6, 6)
                dist.all_gather(gathered, work * 2)
                dist.reduce_scatter(scattered, [work * 3])
                objects = [None]
                dist.all_gather_object(objects, {"sum": float(work.sum())})
                work = work + gathered[0] + scattered
                dist.all_reduce(work)
                return work, objects

            return Case(step, batch)

        check(make, share=None)
    finally:
        dist.destroy_process_group()


def _callee(x, w):
    return torch.tanh(x @ w) * 2 + x.sum()


@item("7.compiled-or-scripted-callees")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_callee(backend):
    def make(run):
        torch._dynamo.reset()
        weight = nn.Parameter(torch.randn(6, 6))
        compiled = torch.compile(_callee, backend=backend)

        def step(x, labels):
            work = busy(x)[:5, :6] * x
            out = compiled(work, weight)
            out.square().mean().backward()
            with torch.no_grad():
                weight.sub_(0.1 * weight.grad)
            return out, work

        return Case(step, batch, weight=weight)

    check(make, share=0.2)  # a compiled callee may run as it is, after a wait


@item("7.compiled-or-scripted-callees")
def test_callee_of_inductor_reads_raw_memory():
    options = {"compile_threads": 1, "cpp.simdlen": 0}

    def make(run):
        torch._dynamo.reset()
        weight = torch.randn(6, 6)
        compiled = torch.compile(_callee, backend="inductor", options=options)

        def step(x, labels):
            weight.mul_(0.9)
            out = compiled(busy(x)[:5, :6] * x, weight)
            return out * 2, weight.sum()

        return Case(step, batch, weight=weight)

    check(make, share=0.2)  # a compiled callee may run as it is, after a wait


@item("7.compiled-or-scripted-callees")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "trace", "freeze"])
def test_scripted_callee(kind):
    def make(run):
        def callee(x, w):
            for _ in range(2):
                x = torch.tanh(x @ w) * 2 + x.sum()
            return x

        weight = nn.Parameter(torch.randn(6, 6))
        net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.ReLU()).eval()
        if kind == "script":
            called = torch.jit.script(callee)
        elif kind == "trace":
            called = torch.jit.trace(callee, (torch.randn(5, 6), weight))
        else:
            frozen = torch.jit.freeze(torch.jit.script(net))
            called = lambda x, w: frozen(x) @ w  # noqa: E731

        def step(x, labels):
            out = called(busy(x)[:5, :6] * x, weight)
            out.square().mean().backward()
            return out

        return Case(step, batch, weight=weight)

    check(
        make, calls=6, share=0.5
    )  # the profiling executor changes what it runs in its first calls
