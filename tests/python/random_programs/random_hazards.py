"""Statements that are hard for anything that runs behind Python: lifetimes, foreign memory,
metadata that moves, graphs that outlive the call, generators, copies and switches."""

from random_control import body
from random_expressions import leaf, tensor
from random_statements import statement


@statement(1.5)
def foreign_memory(source):
    """Memory of a tensor that somebody else reads or writes without an op."""
    variable = source.variable()
    name = f"{variable.name}.detach()"
    source.emit(
        source.pick(
            f"s.log.append(peek({name}))",
            f"s.log.append(torch.from_dlpack({name}).sum().item())",
            f"s.log.append(np.from_dlpack({name}.contiguous()).copy())",
            f"s.log.append(bytes({name}.contiguous().untyped_storage())[:8])",
            f"s.log.append(pickle.loads(pickle.dumps({name})))",
            f"s.log.append(copy.deepcopy({name}))",
            f"s.log.append(saved({name}))",
            f"memoryview({name}.clone().numpy().reshape(-1))[0]",
            f"s.log.append(np.add({name}, 1))",
            f"s.log.append(list({name}.reshape(-1)[:2]))",
        )
    )
    if source.chance(0.3):
        source.emit(f"alias = {name}.clone()")
        source.emit("array = alias.numpy()")
        source.emit(source.pick("alias.mul_(2)", "alias += 1", "alias[...] = 3"))
        source.emit("s.log.append(float(array.sum()))")
        source.emit(source.pick("array += 1", "array[...] = 0", "array *= 2"))
        source.emit("s.log.append(alias.sum())")


@statement(1.2)
def lifetimes(source):
    """Names that die, callbacks and weak references that live on."""
    variable = source.variable()
    text = tensor(source, variable.shape, 2)
    kept = variable.name + (".detach()" if source.autograd else "")
    source.emit(
        source.pick(
            f"{variable.name} = {text}",
            f"s.callbacks.append(lambda t={kept}: float(t.sum()))",
            "s.log.append([callback() for callback in s.callbacks[-2:]])",
            "del s.callbacks[:-1]",
            f"s.weak = weakref.ref({variable.name})",
            "s.log.append(s.weak() is None)",
            f"(lambda: ({text}))()",
            f"s.log.append(id({variable.name}) == id({variable.name}.view_as({variable.name})))",
            f"s.box = [{kept}, {{'inner': ({kept}, {kept}.reshape(-1))}}]",
            "s.box = None",
        )
    )


@statement(1)
def move_metadata(source):
    variable = source.variable()
    if source.autograd and variable.graph:
        return
    shape = variable.shape
    source.emit(f"moved = {variable.name}.clone()")
    source.emit(
        source.pick(
            "moved.resize_(3, 4).fill_(0.5)",
            f"moved.set_({leaf(source, shape)}.detach().clone())",
            f"moved.data = {leaf(source, shape)}.detach() * 2",
            f"torch.utils.swap_tensors(moved, other := {leaf(source, shape)}.detach() + 1)",
            "moved.unsqueeze_(0).mul_(2)",
            "moved.requires_grad_().detach_()",
            "torch.add(moved, 1, out=torch.empty(0))",
            f"torch.mul(moved, {source.number()}, out=moved)",
            "moved = torch.as_strided(moved.contiguous(), moved.shape, moved.clone().stride())",
        )
    )
    source.define((), "moved.sum()", False)


@statement(1)
def generator_function(source):
    if source.block_depth > 2:
        return
    variable = source.variable()
    name = source.fresh("rows")
    with source.block(f"def {name}(k):"):
        with source.block("for j in range(k):"):
            source.emit(f"yield {variable.name} * j + {leaf(source, variable.shape)}")
    item = source.fresh("row")
    with source.block(f"for {item} in {name}({source.count()}):", loop=True):
        source.emit(f"s.log.append(float({item}.sum()))" if source.chance(0.4) else "pass")
        body(source, 1)
        if source.chance(0.3):
            with source.block(f"if {item}.sum() > 0:"):
                source.emit("break")


@statement(0.8)
def blocks_with_a_setting(source):
    if source.block_depth > 2 or source.no_grad:
        return
    header = source.pick(
        "with torch.autocast('cpu', dtype=torch.bfloat16):",
        "with Logged(s):",
        "with torch.random.fork_rng():",
        "with warnings.catch_warnings():",
        "with torch.autograd.set_detect_anomaly(True, check_nan=False):",
    )
    if "autocast" in header:
        with source.block(header):
            text = tensor(source, ("n", 3), 2)
            source.emit(f"half = ({text}) @ torch.ones(3, 2)")
            source.emit("s.log.append((str(half.dtype), float(half.sum())))")
        return
    with source.block(header):
        body(source, 3)


@statement(1)
def later_backward(source):
    """A loss of this call whose backward pass runs in a later one."""
    if not source.autograd or source.no_grad or source.block_depth > 1:
        return
    weight = f"s.{source.rng.choice(list(source.parameters))}"
    with source.block("if s.pending is None:"):
        source.emit(f"s.pending = (({tensor(source, (3,), 2)}).tanh().sum() + {weight}.sum())")
    with source.block(f"elif {source.condition()}:"):
        with source.block("try:"):
            source.emit("s.pending.backward()")
        with source.block("except RuntimeError as error:"):
            source.emit("s.log.append((str(error), lines(error)))")
        source.emit("s.pending = None")


@statement(0.8)
def autograd_hooks(source):
    if not source.autograd or source.no_grad:
        return
    weight = f"s.{source.rng.choice(list(source.parameters))}"
    found = source.variable(graph=True)
    name = found.name if found else weight
    line = source.pick(
        f"{weight}.register_hook(lambda g: g * 0.9)",
        f"{weight}.register_post_accumulate_grad_hook(lambda p: s.log.append(p.grad.sum().item()))",
        f"{name}.retain_grad()",
        f"{weight}.requires_grad_({source.condition()})",
        f"{weight}.grad = None",
        f"{weight}.data.clamp_(-1, 1)",
        f"{weight}.data = {weight}.data * 0.99",
        f"{name}.register_hook(lambda g: g.clamp(-1, 1))",
    )
    if line.startswith(name) and "hook" in line or "retain_grad" in line:
        line = f"{name}.requires_grad and {line}"
    source.emit(f"s.calls < 3 and {line}" if "register" in line else line)


@statement(0.8)
def numbers_of_other_types(source):
    """The same op at the same place with an int, a float, a bool and a tensor."""
    variable = source.variable()
    name = variable.name
    other = source.fresh("number")
    source.emit(f"{other} = (1, 0.5, True, torch.tensor(2.0), -3)[s.calls % 5]")
    source.define(variable.shape, f"torch.add({name}, {other})", variable.graph)
    if source.chance(0.5):
        source.define(variable.shape, f"({name} * {other}).float()", variable.graph)
    if source.chance(0.5):
        text = f"{name}.{source.pick('sum', 'mean')}(dim={source.pick('-1', '(s.calls % 2) - 1')})"
        if variable.shape:
            source.emit(f"s.log.append({text}.sum().item())")
