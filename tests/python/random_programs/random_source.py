"""The state of a program while it is written: scope, indentation, choices.

A program is a pure function of its seed. Shapes are tracked while writing, so that most statements
are valid: a shape is a tuple of ints and of the string "n", the number of rows, which changes from
call to call. Dynamic control flow cannot break this, because a variable keeps its shape for life
and a variable that is made inside a branch or a loop dies with it.
"""

import random
from contextlib import contextmanager
from dataclasses import dataclass

STATIC_DIMS = (2, 3, 4)
SHAPES = (("n", 4), ("n", 3), (4, 3), (3, 4), (3, 3), (4,), (3,), ("n",), (), (2, 3, 4))


@dataclass
class Variable:
    """A tensor variable that is in scope. `graph`: autograd may hold it."""

    name: str
    shape: tuple
    graph: bool


class Source:
    """Collects the lines of one program and answers what may be used where."""

    def __init__(self, seed):
        self.seed = seed
        self.rng = random.Random(seed)
        self.lines = []
        self.indent = 0
        self.variables = []
        self.integers = []
        self.helpers = []
        self.budget = 0
        self.loop_depth = 0
        self.block_depth = 0
        self.function = ""
        self.counter = 0
        self.autograd = self.rng.random() < 0.5
        self.no_grad = not self.autograd
        self.clone_share = 0.85 if self.autograd else 0.3
        self.memory_share = self.rng.choice((0, 0, 0.7))
        self.parameters = {}

    # -- choices ---------------------------------------------------------------------------------

    def chance(self, share):
        return self.rng.random() < share

    def pick(self, *options):
        return self.rng.choice(options)

    def weighted(self, table):
        """One key of `table`: name or function -> weight."""
        keys = list(table)
        return self.rng.choices(keys, [table[key] for key in keys])[0]

    # -- lines and scopes ------------------------------------------------------------------------

    def emit(self, line):
        self.lines.append("    " * self.indent + line)

    def fresh(self, prefix="v"):
        self.counter += 1
        return f"{prefix}{self.counter}"

    def define(self, shape, text, graph=None, prefix="v"):
        """Writes `name = text` and puts the name into scope; returns the Variable."""
        name = self.fresh(prefix)
        self.emit(f"{name} = {text}")
        variable = Variable(name, shape, self.touches_graph(text) if graph is None else graph)
        self.variables.append(variable)
        return variable

    @contextmanager
    def block(self, header, loop=False):
        """An indented block; what is defined in it is out of scope after it."""
        self.emit(header)
        variables, integers = list(self.variables), list(self.integers)
        self.indent += 1
        self.block_depth += 1
        self.loop_depth += loop
        length = len(self.lines)
        yield
        if len(self.lines) == length:
            self.emit("pass")
        self.indent -= 1
        self.block_depth -= 1
        self.loop_depth -= loop
        self.variables, self.integers = variables, integers

    # -- what is in scope ------------------------------------------------------------------------

    def touches_graph(self, text):
        """Whether an expression mentions a parameter or a variable that autograd may hold."""
        if not self.autograd or self.no_grad:
            return False
        return (
            "s.w" in text
            or "help" in text
            or any(variable.graph and variable.name in text for variable in self.variables)
        )

    def candidates(self, shape=None, graph=None):
        return [
            variable
            for variable in self.variables
            if (shape is None or variable.shape == shape)
            and (graph is None or variable.graph == graph)
        ]

    def variable(self, shape=None, graph=None):
        """A variable in scope, the youngest ones more often, or None."""
        found = self.candidates(shape, graph)
        if not found:
            return None
        if self.chance(0.5):
            found = found[-3:]
        return self.rng.choice(found)

    def any_name(self):
        return self.variable().name

    # -- Python values ---------------------------------------------------------------------------

    def number(self):
        """A Python number as source text: constant, argument, loop counter or attribute."""
        return self.weighted(
            {
                self.pick("0.5", "2", "-1.5", "0.25", "3"): 4,
                "scale": 2,
                self.rng.choice(self.integers): 3,
                "s.calls": 1,
                "s.rate": 1,
                "s.number": 1,
                "random.random()": 0.5,
                "float(np.random.rand())": 0.3,
            }
        )

    def condition(self):
        """An `if` condition on a flag, on a number, or on the value of a tensor."""
        name = self.any_name()
        options = {
            self.pick("flags[0]", "flags[1]", "flags[2]", "flags[3]"): 5,
            f"{self.rng.choice(self.integers)} > {self.pick(0, 1, 2)}": 2,
            "s.calls % 2": 1,
            "s.calls % 3 == 1": 1,
            "random.random() < 0.5": 0.7,
            f"{name}.sum() > 0": 3,
            f"bool(({name} > 0.1).any())": 1,
            f"({name} != 0).all()": 0.7,
            f"{name}.sum().item() < 0.3": 2,
            f"not {name}.mean().gt(0)": 1,
            f"float({name}.max()) > {self.pick('0.5', '0', 'scale')}": 1,
            "s.last is not None and s.last.sum() > 0": 0.7,
            "len(s.kept) > 2": 0.5,
        }
        return self.weighted(options)

    def count(self):
        """A small trip count: argument, constant or the value of a tensor."""
        name = self.any_name()
        return self.weighted(
            {
                "count": 4,
                "1 + count % 2": 2,
                "2": 2,
                "s.calls % 3": 1,
                f"int({name}.abs().sum().clamp(0, 3).nan_to_num())": 1,
                f"({name} > 0).sum().item() % 4": 1,
                f"len({name}) % 4" if self.variables and self.rank(name) else "1": 0.7,
                "int(ids[0])": 1,
            }
        )

    def rank(self, name):
        return next((len(v.shape) for v in self.variables if v.name == name), 0)

    def size(self, shape):
        """A shape as source text."""
        inner = ", ".join(str(dim) for dim in shape)
        return f"({inner},)" if len(shape) == 1 else f"({inner})"
