"""Statements with blocks: branches, loops, handlers, closures, backward passes and errors."""

from random_expressions import leaf, tensor
from random_statements import ABOUT_MEMORY, STATEMENTS, statement

# An op that fails by value, by shape or in Python: (expression, needs a shape).
FAILURES = (
    "{x}[torch.tensor(9999)]",
    "{x}.index_select(0, torch.tensor([0, 99999]))",
    "F.nll_loss(torch.ones(2, 3), torch.tensor([0, 7]))",
    "F.embedding(torch.tensor([0, 50]), torch.ones(4, 2))",
    "torch.linalg.inv(torch.zeros(3, 3))",
    "torch.linalg.cholesky(-torch.eye(3))",
    "torch.multinomial(torch.zeros(3), 1)",
    "torch.bernoulli(torch.full((2,), 1.5))",
    "torch.ones(4).gather(0, torch.tensor([5]))",
    "F.one_hot(torch.tensor([3]), 2)",
    "torch.ones(3, 4) @ torch.ones(3, 4)",
    "{x}.view(7, 77)",
    "{x}.sum().item() / 0",
    "torch.ones(3) + torch.ones(4)",
    "[1, 2][5]",
    "s.table['no such key']",
    "{x}.expand(3, 3, 2, 2, 77).add_(1)",
    "torch.zeros(3).index_add_(0, torch.tensor([0, 9]), torch.ones(2))",
    "torch.zeros(4).scatter_(0, torch.tensor([6]), 1.0)",
    "torch.full((2,), 2.5).put_(torch.tensor([8]), torch.tensor([1.0]))",
    "torch.ones(2, 2)[torch.tensor([0, 1]), torch.tensor([1, 2])]",
    "bool({x}.reshape(-1)[:2] > 0)",
    "torch.tensor([1, 2]).add_(0.5)",
    "torch.linalg.solve(torch.zeros(2, 2), torch.ones(2))",
    "torch.normal(torch.zeros(2), -torch.ones(2))",
)


def body(source, length):
    """Emits up to `length` statements, within the budget of the whole program."""
    for _ in range(length):
        if source.budget <= 0:
            return
        source.budget -= 1
        if source.chance(source.memory_share):
            source.weighted(ABOUT_MEMORY)(source)
        else:
            source.weighted(STATEMENTS)(source)


@statement(6)
def branch(source):
    if source.block_depth > 3:
        return
    with source.block(f"if {source.condition()}:"):
        body(source, source.rng.randint(1, 3))
    if source.chance(0.2):
        with source.block(f"elif {source.condition()}:"):
            body(source, 2)
    if source.chance(0.5):
        with source.block("else:"):
            body(source, source.rng.randint(1, 3))


@statement(4)
def loop(source):
    if source.loop_depth > 1 or source.block_depth > 3:
        return
    name = source.fresh("i")
    kind = source.weighted({"range": 5, "rows": 1, "while": 2, "list": 1})
    if kind == "while":
        source.emit(f"{name} = 0")
    header = {
        "range": f"for {name} in range({source.count()}):",
        "rows": f"for {name}, row in enumerate({source.variable().name}.reshape(-1)[:3]):",
        "while": f"while {name} < 3 and {source.condition()}:",
        "list": f"for {name} in [{source.number()}, {source.number()}]:",
    }[kind]
    with source.block(header, loop=True):
        if kind == "while":
            source.emit(f"{name} += 1")
        if kind != "list":
            source.integers = [*source.integers, name]
        body(source, source.rng.randint(1, 3))
        if source.chance(0.15):
            with source.block(f"if {source.condition()}:"):
                source.emit(source.pick("break", "continue"))
        if source.chance(0.5):
            body(source, 1)


@statement(2.5)
def failure(source):
    """An error inside `try`; what was asked before it has happened, what comes after it has not."""
    if source.block_depth > 3:
        return
    failing = source.rng.choice(FAILURES).format(x=source.any_name())
    with source.block("try:"):
        body(source, source.rng.randint(0, 2))
        if source.chance(0.3):
            failing = f"{failing} if {source.condition()} else None"
        source.emit(source.pick(failing, f"s.last = {failing}", f"s.log.append({failing})"))
        body(source, 1)
    with source.block("except Exception as error:"):
        source.emit("s.log.append((type(error).__name__, str(error), lines(error)))")
        if source.chance(0.5):
            body(source, 1)
    if source.chance(0.3):
        with source.block("finally:"):
            source.emit('s.log.append("finally")')
            body(source, 1)


@statement(0.3)
def uncaught(source):
    """An error that nothing in the program catches, on some calls."""
    with source.block(f"if s.calls == {source.pick(1, 2, 3, 4)}:"):
        failing = source.rng.choice(FAILURES).format(x=source.any_name())
        source.emit(source.pick(failing, failing, "raise ValueError('by the user')"))


@statement(1)
def closure(source):
    if source.block_depth > 2:
        return
    variable = source.variable()
    name = source.fresh("inner")
    source.emit(f"total{name} = {source.number()}")
    with source.block(f"def {name}(k):"):
        source.emit(f"nonlocal total{name}")
        source.emit(f"total{name} += k")
        source.emit(f"return {variable.name} * total{name} + {leaf(source, variable.shape)}")
    source.define(variable.shape, f"{name}({source.number()})", source.autograd)
    if source.chance(0.6):
        source.define(variable.shape, f"{name}(1)", source.autograd)


@statement(1)
def structural_match(source):
    if source.block_depth > 2:
        return
    with source.block(f"match {source.rng.choice(source.integers)} % 3:"):
        for case in ("0", "1", "_"):
            with source.block(f"case {case}:"):
                body(source, 1)


@statement(1)
def without_gradient(source):
    if source.block_depth > 2 or source.no_grad:
        return
    with source.block(source.pick("with torch.no_grad():", "with torch.set_grad_enabled(False):")):
        source.no_grad = True
        body(source, 3)
        source.no_grad = False


@statement(0.7)
def containers(source):
    """Tensors in lists and dicts, sorted and looked up by their values."""
    shape = source.pick((4,), (3,), ("n", 4))
    items = ", ".join(tensor(source, shape, 2) for _ in range(3))
    name = source.fresh("items")
    source.emit(f"{name} = [{items}]")
    source.define(
        shape,
        source.pick(
            f"sorted({name}, key=lambda t: float(t.detach().sum()))[0]",
            f"max({name}, key=lambda t: t.detach().abs().sum())",
            f"{name}[count % 3]",
            f"{{k: t for k, t in enumerate({name})}}[count % 3] * 1",
            f"torch.stack({name}).amax(0)",
            f"next((t for t in {name} if t.sum() > 0), {name}[0])",
        ),
        source.autograd,
    )


@statement(2.5)
def gradients(source):
    """Gradients of something, in one of autograd's forms; only in programs with parameters."""
    if not source.autograd or source.no_grad or source.block_depth > 2:
        return
    value = f"({tensor(source, source.pick((), (3,), (4, 3), ('n', 4)))})"
    weight = f"s.{source.rng.choice(list(source.parameters))}"
    kind = source.pick("train", "train", "train", "grad", "twice", "accumulate", "hook")
    loss = source.fresh("loss")
    source.emit(f"{loss} = {value}.tanh().mean() + ({weight} * {source.number()}).sin().mean()")
    with source.block("try:"):
        if kind in ("train", "accumulate", "hook"):
            train(source, loss, kind)
        elif kind == "grad":
            source.emit(f"(g,) = torch.autograd.grad({loss}, {weight})")
            source.emit("s.log.append(g)")
        else:
            source.emit(f"(g,) = torch.autograd.grad({loss}, {weight}, create_graph=True)")
            source.emit(f"(g.square().sum() + {loss}).backward()")
    with source.block("except RuntimeError as error:"):
        source.emit("s.log.append((str(error), lines(error)))")
    if source.chance(0.3):
        source.define((), f"{loss}.detach()", False)


def train(source, loss, kind):
    if kind != "accumulate":
        source.emit(f"s.optimizer.zero_grad({source.pick('', 'set_to_none=False')})")
    if kind == "hook":
        found = source.variable(graph=True)
        name = found.name if found else loss
        with source.block(f"if {name}.requires_grad:"):
            source.emit(f"{name}.register_hook(lambda g: s.log.append(float(g.sum())))")
    source.emit(f"{loss}.backward({source.pick('', '', 'retain_graph=True')})")
    if source.chance(0.2):
        source.emit("s.log.append(float(torch.nn.utils.clip_grad_norm_(s.weights(), 0.5)))")
    if source.chance(0.2):
        source.emit("s.log.append(s.weights()[0].grad)")
    if kind != "accumulate" or source.chance(0.3):
        source.emit("s.optimizer.step()")
    if source.chance(0.15):
        source.emit('s.optimizer.param_groups[0]["lr"] *= 0.7')
    if source.chance(0.15):
        with source.block("with torch.no_grad():"):
            source.emit("s.weights()[-1].mul_(0.99)")


@statement(0.8)
def special_gradients(source):
    if not source.autograd or source.no_grad:
        return
    shape = source.pick((4, 3), ("n", 4))
    text = tensor(source, shape, 1)
    source.define(
        shape,
        source.pick(
            f"Scaled.apply({text}, {source.number()}, s)",
            f"checkpoint(lambda t: F.dropout(t.tanh(), 0.5) * t, {text}, use_reentrant=False)",
            f"({text}).detach().requires_grad_()",
        ),
        True,
    )
