"""A random program as Python source text: `program_text(seed)`, and what it is imported as.

The text defines `start() -> state`, `inputs(call) -> arguments of step after the state`,
`step(state, ...)`, the function under test, and `between(state, call)`, which the caller runs
outside of it.
"""

import linecache
import types

import random_control
import random_hazards  # noqa: F401  (registers statements)
import random_layers  # noqa: F401  (registers expressions)
import random_memory
from random_expressions import tensor
from random_source import Source, Variable

HEADER = '''\
"""Random program, seed {seed}."""

import copy
import ctypes
import io
import pickle
import random
import traceback
import warnings
import weakref

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, factor, s):
        ctx.save_for_backward(t)
        ctx.factor, ctx.s = factor, s
        return t * factor

    @staticmethod
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        ctx.s.log.append(float(g.sum()))
        return g * ctx.factor + 0 * t, None, None


class Logged:
    """A context manager of the user's, with ops and effects on the way in and out."""

    def __init__(self, s):
        self.s = s

    def __enter__(self):
        self.s.log.append(float((self.s.buffer * 2).sum()))

    def __exit__(self, kind, error, where):
        self.s.buffer.add_(0.1)
        self.s.log.append((str(kind), self.s.buffer.sum().item()))


def under(context, compute):
    with context:
        return compute()


def in_double(compute):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return compute()
    finally:
        torch.set_default_dtype(before)


def peek(t):
    """The first number of a float tensor, read through its raw pointer."""
    t = t.float().contiguous()
    return ctypes.c_float.from_address(t.data_ptr()).value if t.numel() else None


def saved(t):
    file = io.BytesIO()
    torch.save(t, file)
    return torch.load(io.BytesIO(file.getvalue()))


def saved_pair(first, second):
    """Both after saving and loading them together: views of one memory stay that."""
    file = io.BytesIO()
    torch.save([first, second], file)
    return torch.load(io.BytesIO(file.getvalue()))


class State:
    def weights(self):
        found = list(vars(self).values()) + list(self.norm.parameters())
        return [value for value in found if isinstance(value, torch.nn.Parameter)]


def lines(error):
    found = traceback.extract_tb(error.__traceback__)
    return [(f.name, f.lineno) for f in found if f.filename == __file__]


def start():
    torch.manual_seed({seed})
    random.seed({seed})
    np.random.seed({seed})
    s = State()
    s.calls, s.number, s.rate = 0, 1.5, 0.1
    s.kept, s.table, s.log, s.last, s.rng = [], {{}}, [], None, None
    s.buffer = torch.randn(3, 4)
    s.view, s.window = None, None
    s.array = np.arange(12, dtype=np.float32).reshape(3, 4)
    s.generator = torch.Generator().manual_seed(5)
    s.callbacks, s.weak, s.box, s.pending = [], lambda: None, None, None
    s.norm, s.drop = torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2)
    s.recurrent, s.bag = torch.nn.LSTM(4, 4, batch_first=True), torch.nn.EmbeddingBag(4, 4)
    s.attention = torch.nn.MultiheadAttention(4, 2)
{memory}{layers}{parameters}    return s


def inputs(call):
    r = random.Random({seed} * 100 + call)
    g = torch.Generator().manual_seed({seed} * 100 + call)
    n = r.choice({rows})
    x, y, z = (torch.randn(size, generator=g) for size in ((n, 4), (n, 3), (4, 3)))
    ids = torch.randint(0, 4, (n,), generator=g)
    flags = [r.random() < 0.5 for _ in range(4)]
    return x, y, z, ids, flags, r.choice((0, 1, 2, 2, 3)), r.choice((0.5, 0.5, 1.25))


def between(s, call):
{between}

'''
OPTIMIZERS = (
    "SGD(s.weights(), lr=0.05, momentum=0.9)",
    "SGD(s.weights(), lr=0.1)",
    "Adam(s.weights(), lr=0.01)",
    "AdamW(s.weights(), lr=0.01, foreach=False)",
    "AdamW(s.weights(), lr=0.02, fused=True)",
    "RMSprop(s.weights(), lr=0.01)",
    "Adagrad(s.weights(), lr=0.05)",
    "Adam(s.weights(), lr=0.01, foreach=True)",
)
FROZEN = """\
    for layer in (s.norm, s.recurrent, s.bag, s.attention):
        layer.requires_grad_(False)
"""
BETWEEN = (
    "pass",
    "pass",
    "pass",
    "s.buffer.add_(0.5)",
    "s.kept and s.kept[-1].detach().mul_(0.5)",
    "s.array[0] = call",
    "torch.rand(2)",
    "s.rate = 0.2 * call",
    "s.kept.clear()",
)


def program_text(seed):
    """The source text of program `seed`; a pure function of the seed."""
    source = Source(seed)
    rng = source.rng
    parameters = ""
    if source.autograd:
        source.parameters = {"w1": (4, 3), "w2": (4,), "w3": (3, 4)}
        for name, shape in source.parameters.items():
            parameters += f"    s.{name} = torch.nn.Parameter(torch.randn{shape} * 0.5)\n"
        parameters += f"    s.optimizer = torch.optim.{rng.choice(OPTIMIZERS)}\n"
    rows = rng.choices(("(2, 3, 5)", "(4,)", "(1200, 1500)"), (12, 8, 0.6))[0]
    layers = "" if source.autograd else FROZEN
    header = HEADER.format(
        seed=seed,
        parameters=parameters,
        memory=random_memory.STATE,
        layers=layers,
        rows=rows,
        between=f"    {rng.choice(BETWEEN + random_memory.BETWEEN)}",
    )
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        helper(source)
    main(source)
    return header + "\n".join(source.lines) + "\n"


def helper(source):
    """A function that calls itself, or functions written before it, to a small depth."""
    name = source.fresh("help")
    begin_function(source, name, "x, ids, flags, count, scale", ("x",))
    recursive = source.chance(0.4)
    with source.block("if count <= 0:"):
        source.emit(source.pick("return x * 0.5", "return torch.relu(x)", "return x"))
    source.budget = source.rng.randint(2, 5)
    random_control.body(source, 6)
    if recursive:
        call = f"{name}(s, {{}}, ids, flags, count - 1, scale)"
        line = source.pick("{0}", "{0} + {1}", "{0} if flags[2] else {1}")
        first, second = call.format("x * 0.5"), call.format(tensor(source, ("n", 4), 2))
        source.emit("return " + line.format(first, second))
    else:
        source.emit("return " + tensor(source, ("n", 4), 2))
    end_function(source)
    source.helpers.append(name)


def main(source):
    begin_function(source, "step", "x, y, z, ids, flags, count, scale", ("x", "y", "z"))
    source.emit("s.calls += 1")
    source.budget = source.rng.choice((4, 8, 12, 16, 24))
    random_control.body(source, 40)
    if source.autograd and source.chance(0.8):
        random_control.gradients(source)
    names = [variable.name for variable in source.variables[-4:]]
    source.emit(source.pick(f"return [{', '.join(names)}]", f"return {names[-1]}", "return None"))
    end_function(source)


def begin_function(source, name, arguments, tensors):
    shapes = {"x": ("n", 4), "y": ("n", 3), "z": (4, 3)}
    source.emit(f"def {name}(s, {arguments}):")
    source.indent, source.block_depth, source.loop_depth = 1, 0, 0
    source.function, source.variables, source.integers = name, [], ["count", "n"]
    source.emit("n = x.shape[0]")
    inside = name != "step"
    source.variables = [Variable(t, shapes[t], inside and source.autograd) for t in tensors]


def end_function(source):
    source.indent = 0
    source.emit("")
    source.emit("")


def load(text, name):
    """Imports the text as a module of that name; tracebacks can show its lines."""
    module = types.ModuleType(name)
    module.__file__ = f"<{name}>"
    linecache.cache[module.__file__] = (len(text), None, text.splitlines(True), module.__file__)
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module
