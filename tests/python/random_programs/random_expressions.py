"""Expressions with a wanted shape: ops, views, draws, reductions, calls of helpers.

Each function below takes (source, shape, depth) and returns source text, or None where it has
nothing for that shape. To add a kind of expression, write one more function with `@expression`.
"""

EXPRESSIONS = {}


def expression(weight):
    def register(function):
        EXPRESSIONS[function] = weight
        return function

    return register


def tensor(source, shape, depth=3):
    """Source text of a float tensor of the given shape."""
    if depth > 0:
        for _ in range(6):
            text = source.weighted(EXPRESSIONS)(source, shape, depth - 1)
            if text is not None:
                return text
    return leaf(source, shape)


def leaf(source, shape):
    """A variable or a parameter of this shape, or something made on the spot."""
    found = [variable.name for variable in source.candidates(shape)]
    found += [f"s.{name}" for name, size in source.parameters.items() if size == shape]
    if shape == (3, 4):
        found += ["s.buffer", "s.buffer"]
    if found and source.chance(0.9):
        return source.rng.choice(found)
    return source.pick(
        f"torch.full({source.size(shape)}, {source.number()}, dtype=torch.float32)",
        f"(torch.ones({source.size(shape)}) * {source.number()})",
        f"torch.zeros({source.size(shape)})",
        f"{source.any_name()}.sum().tanh().expand({source.size(shape)})",
    )


@expression(6)
def unary(source, shape, depth):
    inner = tensor(source, shape, depth)
    op = source.pick(
        "tanh()",
        "sigmoid()",
        "relu()",
        "abs()",
        "neg()",
        "clamp(-1, 1)",
        "sin()",
        "round()",
        "square()",
        "nan_to_num()",
        "sign()",
        "exp().clamp(max=4)",
        "abs().sqrt()",
        "log1p()",
        "clone()",
        "contiguous()",
        "detach()",
        "softmax(-1)",
        "cumsum(-1)",
        "flip(-1)",
        "sort(-1)[0]",
    )
    if not shape and op in ("flip(-1)", "sort(-1)[0]"):
        op = "tanh()"
    function = source.pick("F.gelu", "F.silu", "torch.cos", "F.softplus", "F.leaky_relu")
    return f"({inner}).{op}" if source.chance(0.8) else f"{function}({inner})"


@expression(7)
def binary(source, shape, depth):
    other = shape
    if shape and source.chance(0.35):
        other = source.pick(shape[1:], ())
    left, right = tensor(source, shape, depth), tensor(source, other, depth)
    if source.chance(0.2) and other == shape:
        left, right = right, left
    if source.chance(0.15):
        function = source.pick("maximum", "minimum", "hypot", "atan2", "fmod", "sub", "add")
        return f"torch.{function}({left}, {right})"
    return f"({left} {source.pick('+', '-', '*', '*', '+')} {right})"


@expression(3)
def with_number(source, shape, depth):
    inner, number = tensor(source, shape, depth), source.number()
    return source.pick(
        f"({inner} * {number})",
        f"({inner} + {number})",
        f"({number} - {inner})",
        f"torch.add({inner}, {tensor(source, shape, 0)}, alpha={number})",
        f"({inner}).clamp(max={number})",
    )


@expression(3)
def matrix_product(source, shape, depth):
    if len(shape) not in (1, 2):
        return None
    inner = source.pick(3, 4)
    if len(shape) == 1:
        return f"({tensor(source, (shape[0], inner), depth)} @ {tensor(source, (inner,), depth)})"
    left = tensor(source, (shape[0], inner), depth)
    right = tensor(source, (inner, shape[1]), depth)
    if source.chance(0.3) and shape[1] != "n":
        weight = tensor(source, (shape[1], inner), depth)
        return f"F.linear({left}, {weight}, {leaf(source, (shape[1],))})"
    return f"({left} @ {right})"


@expression(2)
def row_wise(source, shape, depth):
    if not shape or shape[-1] == "n":
        return None
    inner = tensor(source, shape, depth)
    return source.pick(
        f"F.layer_norm({inner}, ({shape[-1]},))",
        f"F.log_softmax({inner}, -1)",
        f"F.normalize({inner}, dim=-1)",
        f"({inner}).topk({shape[-1]}, -1)[0]",
        f"({inner})[..., ids[:1].expand({shape[-1]}) % {shape[-1]}]",
        f"torch.roll({inner}, 1, -1)",
        f"torch.gather({inner}, -1, ({inner}).argsort(-1))",
    )


@expression(4)
def view(source, shape, depth):
    """A view of another tensor, often of a variable, so that aliases stay alive."""
    rank = len(shape)
    if rank == 2:
        a, b = shape
        options = [
            f"({tensor(source, (b, a), depth)}).{source.pick('t()', 'T', 'transpose(0, 1)')}"
        ]
        options.append(
            f"({leaf(source, (2, 3, 4))})[{source.pick(0, 1, -1)}]"
            if shape == (3, 4)
            else f"({tensor(source, (b,), depth)}).expand({a}, {b})"
        )
        options.append(f"({tensor(source, (a,), depth)}).unsqueeze(1).expand(-1, {b})")
        if b == 3:
            options.append(
                f"({tensor(source, (a, 4), depth)})[:, {source.pick('1:', ':3', ':-1')}]"
            )
            options.append(f"({tensor(source, (a, 4), depth)}).narrow(1, 1, 3)")
        if shape == (3, 4):
            options.append(f"({tensor(source, (4, 3), depth)}).reshape(3, 4)")
            options.append(f"({tensor(source, (2, 3, 4), depth)}).unbind(0)[1]")
        return source.rng.choice(options)
    if rank == 1:
        wide = shape[0] if shape[0] != "n" else 4
        options = [
            f"({tensor(source, (shape[0], 4), depth)})[:, {source.pick(0, 2, -1)}]",
            f"({tensor(source, (shape[0], 3), depth)}).unbind(1)[1]",
            f"({tensor(source, (3, shape[0]), depth)}).select(0, 2)",
        ]
        if wide == 3:
            options.append(f"({tensor(source, (3, 3), depth)}).diagonal()")
            options.append(f"torch.diag({tensor(source, (3, 3), depth)})")
            options.append(f"({leaf(source, (4,))})[1:]")
        return source.rng.choice(options)
    if rank == 0:
        return f"({tensor(source, (source.pick(3, 4),), depth)})[{source.pick(0, 1, 'ids[0] % 3')}]"
    return f"torch.stack([{tensor(source, shape[1:], depth)}, {leaf(source, shape[1:])}])"


@expression(3)
def reduction(source, shape, depth):
    if len(shape) > 1:
        return None
    dim = source.pick(3, 4, "n")
    inner = tensor(source, (*shape, dim), depth)
    op = source.pick("sum", "mean", "amax", "sum", "logsumexp", "prod", "norm")
    if op == "norm":
        return f"({inner}).norm(dim=-1)"
    if op in ("sum", "mean") and source.chance(0.4):
        return f"({tensor(source, (dim, *shape), depth)}).{op}(0)"
    return f"({inner}).{op}(-1)"


@expression(1.5)
def selection(source, shape, depth):
    inner = tensor(source, shape, depth)
    return source.pick(
        f"torch.where({inner} > 0, {tensor(source, shape, depth)}, {source.number()})",
        f"({inner}).masked_fill({inner} > {source.number()}, 0.5)",
        f"({inner} if {source.condition()} else {leaf(source, shape)})",
    )


@expression(2)
def draw(source, shape, depth):
    size = source.size(shape)
    inner = tensor(source, shape, depth)
    rate, training = source.pick("0.5", "0.1", "0.3"), source.pick("True", "flags[1]")
    return source.pick(
        f"F.dropout({inner}, {rate}, {training})",
        f"torch.rand({size})",
        f"torch.randn({size})",
        f"({inner} + 0.1 * torch.rand_like({inner}))",
        f"torch.bernoulli(torch.sigmoid({inner}).nan_to_num(0.5))",
        f"torch.randint(0, 5, {size}).float()",
        f"torch.rand({size}, generator=s.generator)",
        f"torch.normal(0.0, 1.0, {size})",
        f"torch.empty({size}).uniform_(-1, 1)",
    )


@expression(1.2)
def other_type(source, shape, depth):
    number = source.rng.choice(source.integers)
    inner = tensor(source, shape, depth)
    return source.pick(
        f"({inner}).double().mul(1.1).float()",
        f"({inner} * 2).to(torch.bfloat16).float()",
        f"({inner}).to(torch.float16).add(1).to(torch.float32)",
        f"torch.complex({inner}, {inner}).conj().imag",
        f"({inner} > 0).float()",
        f"({inner}).nan_to_num().clamp(-9, 9).long().add({number}).float()",
    )


@expression(1.2)
def comprehension(source, shape, depth):
    inner = tensor(source, shape, depth)
    count = source.count()
    name = source.fresh("j")
    return source.pick(
        f"sum(({inner} * {name} for {name} in range({count})), {leaf(source, shape)})",
        f"torch.stack([{inner} + {name} for {name} in range(1 + {count})]).mean(0)",
        f"torch.stack([{inner}, *[{leaf(source, shape)} for {name} in range({count})]])[-1]",
    )


@expression(0.8)
def data_dependent(source, shape, depth):
    """Sizes that only the data knows, brought back to a known shape by a reduction."""
    if shape:
        return None
    inner = tensor(source, (source.pick("n", 3, 4),), depth)
    return source.pick(
        f"({inner})[{inner} > 0].sum()",
        f"torch.nonzero({inner}).float().sum()",
        f"torch.masked_select({inner}, {inner} < 0.2).mul(2).sum()",
        f"torch.unique(({inner}).nan_to_num().round()).sum()",
        "torch.bincount(ids).float().max()",
    )


@expression(1)
def indexed(source, shape, depth):
    if len(shape) != 2 or shape[0] != "n" or shape[1] not in (3, 4):
        return None
    table = tensor(source, (4, shape[1]), depth)
    return source.pick(
        f"({table})[ids]",
        f"F.embedding(ids, {table})",
        f"torch.index_select({table}, 0, ids)",
        f"F.one_hot(ids, {shape[1] if shape[1] > 3 else 4}).float()[:, :{shape[1]}]",
        f"torch.cat([{tensor(source, shape, depth)}, {leaf(source, shape)}])[:n]",
        f"({tensor(source, shape, depth)}).index_select(0, torch.randperm(n))",
    )


@expression(1.5)
def helper_call(source, shape, depth):
    if shape != ("n", 4) or not source.helpers:
        return None
    name = source.rng.choice(source.helpers)
    count = source.pick("count", "1", "2", source.rng.choice(source.integers))
    return f"{name}(s, {tensor(source, shape, depth)}, ids, flags, min({count}, 3), scale)"
