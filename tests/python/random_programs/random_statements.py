"""Straight statements: definitions, in-place writes, reads, aliases that outlive the call.

Each function takes the source and emits lines. To add a kind of statement, write one more function
with `@statement(weight)`; statements with blocks stand in random_control.py.
"""

from random_expressions import leaf, tensor
from random_source import SHAPES

STATEMENTS = {}
ABOUT_MEMORY = {}  # those of random_memory.py again: most of what some programs consist of


def statement(weight, about_memory=False):
    def register(function):
        STATEMENTS[function] = weight
        if about_memory:
            ABOUT_MEMORY[function] = weight
        return function

    return register


@statement(9)
def assign(source):
    shape = source.rng.choice(SHAPES)
    source.define(shape, tensor(source, shape))


@statement(4)
def reassign(source):
    """Another value under the same name: inside a branch this is a value that varies."""
    variable = source.variable()
    text = tensor(source, variable.shape)
    source.emit(f"{variable.name} = {text}")
    variable.graph = variable.graph or source.touches_graph(text)


def target(source, shape=None):
    """A variable to write into, cloned before where the write would mostly be an error."""
    variable = source.variable(shape)
    if variable is None:
        return None
    if source.chance(source.clone_share):
        source.emit(f"{variable.name} = {variable.name}.clone()")
    return variable


def window(source, variable):
    """(source text, shape) of a view of the variable, or of the variable itself."""
    name, shape = variable.name, variable.shape
    options = [(name, shape), (f"{name}.view_as({name})", shape)]
    if len(shape) >= 1:
        rest = shape[1:]
        options += [(f"{name}[0]", rest), (f"{name}[-1]", rest), (f"{name}.unbind(0)[1]", rest)]
        options += [(f"{name}.detach()", shape), (f"{name}[1:]", None), (f"{name}[::2]", None)]
    if len(shape) == 2:
        a, b = shape
        options += [
            (f"{name}.t()", (b, a)),
            (f"{name}[:, 1]", (a,)),
            (f"{name}.diagonal()", None),
            (f"{name}.transpose(0, 1)[1]", (a,)),
            (f"{name}.view(-1)[:3]", (3,)),
            (f"{name}.split(2, 1)[0]", None),
            (f"{name}.unsqueeze(0)[0, :, ::2]", None),
        ]
    return source.rng.choice(options)


@statement(8)
def write_in_place(source):
    variable = target(source)
    text, shape = window(source, variable)
    number = source.number()
    options = [
        f"mul_({number})",
        f"add_({number})",
        "tanh_()",
        "zero_()",
        f"fill_({number})",
        "clamp_(-1, 1)",
        f"sub_({number})",
        "neg_()",
        "sigmoid_()",
        "nan_to_num_()",
        "abs_()",
        f"masked_fill_({text} > 0, {number})",
    ]
    if shape is not None:
        other = leaf(source, shape if source.chance(0.7) else shape[1:])
        options += [
            f"add_({other})",
            f"copy_({other})",
            f"mul_({other})",
            f"sub_({other}, alpha=2)",
        ]
        options += [f"lerp_({leaf(source, shape)}, 0.3)", f"addcmul_({other}, {other}, value=0.5)"]
    if not (source.autograd and variable.graph):
        options += ["uniform_()", "normal_()", "bernoulli_(0.4)", "exponential_()"]
    source.emit(f"{text}.{source.rng.choice(options)}")


@statement(4)
def write_by_index(source):
    variable = target(source)
    name, shape, number = variable.name, variable.shape, source.number()
    if not shape:
        source.emit(f"{name} += {number}")
        return
    rest = shape[1:]
    source.emit(
        source.pick(
            f"{name}[{name} > {source.pick('0', '0.5', 'scale')}] = {number}",
            f"{name}[0] = {leaf(source, rest)}",
            f"{name}[..., 1] += {number}",
            f"{name}[ids[0] % len({name})] = {tensor(source, rest, 1)}",
            f"{name}[1:] *= {number}",
            f"{name}[ids[:2] % len({name})] = {leaf(source, rest)}",
            f"{name}.index_add_(0, ids[:2] % len({name}), {name}[:2].clone())",
            f"{name}.scatter_(0, {name}.argmax(0, keepdim=True), {number})",
            f"{name} += {leaf(source, shape)}",
            f"{name} *= {number}",
        )
    )


@statement(2)
def alias(source):
    """A view under a name of its own; later writes to either are seen by both."""
    variable = source.variable()
    text, shape = window(source, variable)
    if shape is not None:
        source.define(shape, text, variable.graph)


@statement(1.5)
def change_metadata(source):
    variable = source.variable()
    shape = variable.shape
    if len(shape) == 2:
        made = source.define(shape[::-1], f"{variable.name}.clone()", variable.graph)
        source.emit(f"{made.name}.{source.pick('t_()', 'transpose_(0, 1)', 'swapdims_(0, 1)')}")
    else:
        made = source.define(shape, f"{variable.name} * 1", variable.graph)
        source.emit(f"{made.name}.unsqueeze_(0)")
        source.emit(f"{made.name}.squeeze_(0)")


@statement(1.5)
def write_out(source):
    shape = source.variable().shape
    detach = ".detach()" if source.autograd else ""
    left, right = f"{leaf(source, shape)}{detach}", f"{leaf(source, shape)}{detach}"
    result = source.define(shape, f"torch.empty({source.size(shape)})", False)
    call = source.pick("add", "mul", "maximum", "sub")
    source.emit(f"torch.{call}({left}, {right}, out={result.name})")


@statement(5)
def read(source):
    """Python reads a value in one of the many ways, and goes on with it or logs it."""
    variable = source.variable()
    name = variable.name
    array = f"{name}.detach().numpy()"
    source.emit(
        source.pick(
            f"s.log.append({name}.sum().item())",
            f"s.log.append({name}.detach().reshape(-1)[:3].tolist())",
            f"s.log.append(float({array}.sum()))",
            f"s.log.append({array}.copy())",
            f"s.log.append(str({name}.detach()))",
            f's.log.append(f"{{{name}.sum():.4f}}")',
            f"s.log.append(repr({name}))",
            f"s.log.append(bool({name}.max() > 0))",
            f"s.log.append(int({name}.nan_to_num().clamp(-5, 5).sum()))",
            f"s.number = round(float({name}.tanh().nan_to_num().sum()), 3)",
            f"s.number = {name}.nan_to_num().clamp(-2, 2).mean().item()",
            f"s.log.append([10, 20, 30, 40][{name}.reshape(-1)[:3].argmax()])",
            f"s.log.append(0 in {name})",
            f"s.log.append(({name}.shape, {name}.stride(), {name}.storage_offset()))",
            f"s.log.append(np.asarray({name}.detach()).max())",
            f"s.log.append(torch.equal({name}, {leaf(source, variable.shape)}))",
            f"s.log.append({name}.detach().clone())",
            f"s.log.append({name}._version)",
            f"s.log.append(({name}.requires_grad, {name}.is_leaf, type({name}.grad_fn).__name__))",
        )
    )


@statement(4)
def keep(source):
    """An alias that lives on after the call, or use of one that was kept in an earlier call."""
    variable = source.variable()
    kept = variable.name
    if source.autograd and source.chance(0.85):
        kept += ".detach()"
    static = source.variable((3, 4))
    value = static.name + ".detach()" if static else "scale"
    source.emit(
        source.pick(
            f"s.kept.append({kept})",
            f"s.kept.append({kept}.reshape(-1)[1:])",
            f"s.last = {kept}",
            f"s.table[{source.rng.choice(source.integers)}] = {kept}",
            "s.kept[-1:] = [t.mul(0.5) for t in s.kept[-1:]]",
            "del s.kept[:-3]",
            "s.log.append([float(t.detach().sum()) for t in s.kept])",
            f"s.buffer.mul_(0.9).add_({value})",
            f"s.buffer[{source.pick(0, 1)}] = {source.number()}",
            f"s.buffer = s.buffer + {value}",
            "s.view = s.buffer[1:]",
            "s.view = s.buffer.t()",
        )
    )


@statement(1.5)
def touch_kept(source):
    with source.block(source.pick("if s.kept:", "for kept in s.kept[-2:]:", "if s.table:")):
        name = "s.kept[-1]" if "if s.kept" in source.lines[-1] else "kept"
        if "table" in source.lines[-1]:
            name = "next(iter(s.table.values()))"
        source.define((), f"{name}.detach().sum()", False)
        if not source.autograd:
            source.emit(f"{name}.mul_(0.5)")


@statement(1.5)
def numpy_alias(source):
    """Memory shared with numpy: written and read by Python without any op."""
    number = source.number()
    source.emit(
        source.pick(
            f"s.array[{source.pick('0', ':', '1, 2')}] = {number}",
            "s.array += 1",
            f"torch.from_numpy(s.array).mul_({number})",
            "s.window = s.buffer.numpy()",
            "s.log.append(s.window.copy() if s.window is not None else None)",
        )
    )
    if source.chance(0.6):
        made = source.define((3, 4), "torch.from_numpy(s.array) * 0.5", False)
        if source.chance(0.5):
            source.emit("s.array[:] = s.array[::-1].copy()")
            source.define((), f"{made.name}.sum()", False)


@statement(1.2)
def seed_or_state(source):
    generator = source.pick("", ", generator=s.generator")
    source.emit(
        source.pick(
            f"torch.manual_seed({source.pick(0, 7, 'count', 's.calls')})",
            "s.rng = torch.get_rng_state()",
            "torch.set_rng_state(s.rng) if s.rng is not None else None",
            f"s.log.append(torch.multinomial(torch.ones(5), 2{generator}).tolist())",
            f"s.log.append(torch.multinomial(s.buffer.abs().nan_to_num(1.0) + 1, 2{generator}))",
            f"s.generator.manual_seed({source.pick(1, 'count')})",
            f"s.log.append(torch.randperm(n{generator}))",
            "random.seed(s.calls)",
            "s.log.append(torch.initial_seed())",
        )
    )


@statement(1.5)
def side_effect(source):
    source.emit(
        source.pick(
            "s.calls += 1",
            f"s.rate = {source.pick('s.rate * 0.5', 'scale', '0.1 * count', '0.3')}",
            f's.log.append("{source.fresh("mark")}")',
            f"s.number = {source.number()}",
            f"s.log.append({source.number()})",
        )
    )
