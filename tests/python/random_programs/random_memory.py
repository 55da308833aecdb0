"""Statements about memory: who was given it, which views of it there are, what is still pending.

`s.flat` holds 24 numbers that live from call to call, `s.grid` is a view of it, and `s.held` are
arrays of numpy's that share its memory or that of something else. Ops write to several views of it
at once, with `out=`, and from lists, while numpy, DLPack or a raw pointer look at the same memory
and while a slow product is pending. Views overlap now and then: PyTorch's errors are compared, too.
"""

from random_expressions import leaf, tensor
from random_statements import statement

STATE = """\
    s.flat = torch.randn(24)
    s.grid, s.held = s.flat.view(2, 3, 4), []
    s.heavy = torch.randn(320, 320) * 0.05
"""
BETWEEN = (
    "s.held and s.held[-1].fill(0.5)",
    "s.flat.mul_(0.5)",
    "s.flat = s.flat.clone()",
    "s.held.append(s.flat.numpy())",
    "del s.held[:-1]",
)


def place(source, shape):
    """Source text of a view of `s.flat`, or of other memory, with this shape."""
    start = source.pick(0, 2, 8)
    options = {
        (24,): ["s.flat", "s.grid.view(-1)", "s.flat.detach()"],
        (12,): ["s.flat[:12]", "s.flat[12:]", "s.flat[::2]", "s.grid[1].view(-1)"],
        (3, 4): [
            "s.grid[0]",
            "s.grid[1]",
            "s.flat.view(6, 4)[::2]",
            "s.flat.view(4, 6).t()[1::2]",
            f"s.flat.as_strided((3, 4), (4, 1), {start})",
            "s.buffer",
            "s.buffer.data",
        ],
        (4,): ["s.grid[0, 1]", f"s.flat[{start}:{start + 4}]", "s.flat[::6]", "s.buffer[1]"],
        (3,): [f"s.flat[{start}:{start + 3}]", "s.grid[1, :, 2]", "s.buffer[:, 0]"],
        (): ["s.flat[5]", "s.grid[1, 0, 0]", "s.buffer[2, 3]"],
    }[shape]
    variable = source.variable(shape)
    if variable and source.chance(0.25):
        options = [f"{variable.name}.detach()"]
    return source.rng.choice(options)


def operand(source, shape):
    """A view of the same memory, or anything else of this shape."""
    if shape in ((24,), (12,)) or source.chance(0.5):
        return place(source, shape)
    return f"({tensor(source, shape, 1)}).detach()"


def place_shape(source):
    return source.pick((24,), (12,), (3, 4), (3, 4), (4,), (3,), ())


@statement(1.5, about_memory=True)
def write_a_place(source):
    shape = place_shape(source)
    text, other, number = place(source, shape), operand(source, shape), source.number()
    method = source.pick(
        f"add_({other})",
        f"copy_({other})",
        f"mul_({number}).clamp_(-4, 4)",
        f"lerp_({other}, 0.25)",
        f"addcmul_({other}, {other}, value=0.1)",
        "zero_()",
        "normal_()",
        f"fill_({number})",
        f"masked_fill_({other} > 0.5, {number})",
        f"clamp_(max={number}).add_({other}, alpha=0.5)",
    )
    source.emit(f"{text}.{method}")


@statement(1.5, about_memory=True)
def write_a_list(source):
    """One op that writes several views of one memory, as flat optimizers and averages do."""
    views = source.pick(
        "s.flat.chunk(2)",
        "s.flat.split(6)",
        "s.grid.unbind(0)",
        "[s.grid[0], s.grid[1]]",
        "[s.grid[0], s.buffer]",
        "[s.flat[:4], s.grid[1], s.flat[5]]",
        f"[{place(source, (3, 4))}, {place(source, (4,))}]",
    )
    name, number = source.fresh("views"), source.number()
    source.emit(f"{name} = list({views})")
    other = source.pick(
        f"[t.clone() for t in {name}]",
        f"[t.tanh() for t in {name}]",
        name,
        f"[torch.ones_like(t) * {number} for t in {name}]",
        f"{name}[::-1] if {name}[0].shape == {name}[-1].shape else {name}",
        f"[{operand(source, ())}.expand_as(t) for t in {name}]",
    )
    source.emit(
        source.pick(
            f"torch._foreach_add_({name}, {number})",
            f"torch._foreach_add_({name}, {other}, alpha=0.5)",
            f"torch._foreach_mul_({name}, 0.75)",
            f"torch._foreach_copy_({name}, {other})",
            f"torch._foreach_lerp_({name}, {other}, 0.25)",
            f"torch._foreach_addcmul_({name}, {other}, {other}, value=0.1)",
            f"torch._foreach_zero_({name}[1:])",
            f"torch._foreach_neg_({name})",
            f"s.log.append([float(t) for t in torch._foreach_norm({name})])",
            f"torch._foreach_maximum_({name}, {other})",
        )
    )
    if source.chance(0.4):
        source.emit(f"s.log.append([t._version for t in {name}])")
    if source.chance(0.3):
        source.emit(f"s.log.append({name}[-1].sum().item())")


@statement(1.5, about_memory=True)
def write_out_to_a_place(source):
    shape = place_shape(source)
    out, left, right = place(source, shape), operand(source, shape), operand(source, shape)
    if source.chance(0.3):
        left = out
    options = [
        f"torch.{source.pick('add', 'mul', 'sub', 'maximum', 'hypot')}({left}, {right}, out={out})",
        f"torch.addcmul({left}, {right}, {right}, value=0.5, out={out})",
        f"torch.clamp({left}, -1, 1, out={out})",
        f"torch.where({left} > 0, {left}, {right}, out={out})",
        f"torch.tanh({left}, out={out})",
    ]
    if shape in ((24,), (12,)):
        options += [
            f"torch.cat([{left}[:{shape[0] // 2}], {right}[{shape[0] // 2}:]], out={out})",
            f"torch.cumsum({left}.clone(), 0, out={out})",
            f"torch.sort({left}.clone(), out=({out}, torch.empty({shape[0]}, dtype=torch.long)))",
        ]
    if shape == (3, 4):
        cube = f"{operand(source, (3, 4))}.clone()"  # where an overlap is not checked, it is a race
        options += [
            f"torch.sum({cube}, dim=1, out={place(source, (3,))})",
            f"torch.max({cube}, 1, out=({place(source, (3,))}, torch.empty(3, dtype=torch.long)))",
            f"torch.mv({cube}, {operand(source, (4,))}, out={place(source, (3,))})",
            f"torch.mm({cube}, torch.eye(4), out={out})",
            f"torch.stack([{operand(source, (4,))}] * 3, out={out})",
            f"torch.index_select({cube}, 0, torch.tensor([2, 0, 1]), out={out})",
        ]
    source.emit(source.rng.choice(options))


@statement(1.5, about_memory=True)
def give_out(source):
    """From here on somebody else may look at this memory, or write to it, at any time."""
    text = place(source, place_shape(source))
    source.emit(
        source.pick(
            f"s.held.append({text}.detach().numpy())",
            f"s.held.append({text}.detach().numpy())",
            f"s.held.append(np.from_dlpack({text}.detach()))",
            f"{text}.data_ptr()",
            f"{text}.untyped_storage()",
            f"s.log.append(peek({text}))",
            f"s.last = torch.from_dlpack({text}.detach())",
            f"s.last = torch.from_numpy({text}.detach().numpy())",
            "s.flat = saved(s.flat)",
            "s.grid = saved(s.grid)",
            "s.flat, s.grid = saved_pair(s.flat, s.grid)",
            "s.flat = torch.from_numpy(s.flat.numpy())",
            "s.buffer = saved(s.buffer)",
            f"s.log.append(pickle.loads(pickle.dumps({text})))",
            f"s.last = torch.as_tensor({text}.detach().numpy())",
        )
    )


@statement(1.5, about_memory=True)
def use_what_was_given_out(source):
    with source.block("if s.held:"):
        source.emit(
            source.pick(
                "s.log.append(s.held[-1].copy())",
                "s.log.append([float(array.sum()) for array in s.held[-3:]])",
                f"s.held[-1][...] = {source.number()}",
                "s.held[-1] *= 0.5",
                "del s.held[:-2]",
                "s.held.pop()",
                "s.held.append(s.held[0][..., 1:])",
                "s.last = torch.from_numpy(s.held[-1]) * 2",
                "torch.from_numpy(s.held[-1]).add_(0.5)",
            )
        )


@statement(1, about_memory=True)
def move_flat(source):
    """The names come to stand for other memory."""
    source.emit(
        source.pick(
            "s.grid = s.flat.view(2, 3, 4)",
            "s.flat = s.grid.view(-1)",
            "s.flat = s.flat.clone()",
            "s.flat = s.flat * 0.9",
            "s.flat, s.grid = copy.deepcopy((s.flat, s.grid))",
            "s.flat.data = s.flat.data * 0.5",
            "s.flat.set_(s.grid.clone().view(-1))",
            "s.flat.detach_()",
            "s.buffer = s.grid[0]",
            "s.buffer = s.buffer.clone()",
        )
    )


@statement(0.8, about_memory=True)
def flat_parameters(source):
    """Parameters and gradients that are views of one memory."""
    if not source.autograd:
        return
    source.emit(
        source.pick(
            "s.w2.data = s.flat[4:8]",
            "s.w1.data = s.flat[12:].view(4, 3)",
            "s.w2.grad = s.flat[:4].detach()",
            "s.w3.grad = s.grid[1].detach()",
            "s.w1.data = s.w1.data.clone()",
            "s.w2.data.copy_(s.flat[:4])",
            "s.flat[:4].copy_(s.w2.detach())",
            "s.held.append(s.w3.detach().numpy())",
            "s.held.append(s.w2.data.numpy())",
            "torch._foreach_lerp_([s.grid[0], s.flat[12:16]], [s.w3.data, s.w2.data], 0.1)",
        )
    )


@statement(1.2, about_memory=True)
def pending(source):
    """A value that takes a while: what is asked after it stays pending for long."""
    made = source.define((), "(s.heavy @ s.heavy @ s.heavy)[1, 2]", False)
    shape = source.pick((3, 4), (4,), ())
    line = source.pick(
        "{place}.add_({value})",
        "{place}.copy_({value})",
        "torch.add({operand}, {value}, out={place})",
        "torch._foreach_add_([s.grid[0], s.grid[1]], {value})",
        "torch._foreach_mul_(list(s.flat.chunk(3)), {value})",
        "s.last = {place} * {value}",
        "{place}.mul_({value}).add_({leaf})",
    )
    source.emit(
        line.format(
            place=place(source, shape),
            operand=operand(source, shape),
            leaf=f"{leaf(source, shape)}.detach()",
            value=made.name,
        )
    )
