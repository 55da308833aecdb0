"""How far the gradients of a model are from exact ones, eagerly and in lockstep.

Exact are those of a float64 twin at the same weights, on the same batch and with the same random
numbers; dropout is off, since it draws other masks in float64. In lockstep they are those of a call
in which all kernels are compiled and chosen.
"""

import copy

CALLS = 20  # until the graph, its kernels and the choice of them are settled


def turn_dropout_off(model):
    import torch

    for part in model.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for owner in (part, getattr(part, "config", None)):
            for name, value in list(vars(owner).items()) if owner is not None else ():
                if "drop" in name and isinstance(value, float):
                    setattr(owner, name, 0.0)
    return model


def in_float64(batch):
    def convert(value):
        is_floating = hasattr(value, "is_floating_point") and value.is_floating_point()
        return value.double() if is_floating else value

    return {name: convert(value) for name, value in batch.items()}


def distance(gradients, exact):
    """Of all parameters together, relative."""
    off = sum((g.double() - e).square().sum().item() for g, e in zip(gradients, exact, strict=True))
    return (off / sum(e.square().sum().item() for e in exact)) ** 0.5


def gradient_errors(model, batch, loss_of, seed):
    """{"eager": error, "default": error}; None where the model does not run in float64.

    `loss_of(model, batch)` is a tensor of one element; `seed()` makes random numbers begin anew.
    """
    import lockstep
    from lockstep import _C

    turn_dropout_off(model)
    twin, exact_twin = copy.deepcopy(model), copy.deepcopy(model).double()

    def gradients(of, batch, step):
        seed()
        step(of, batch)
        dense = [p.grad.to_dense() for p in of.parameters() if p.grad is not None]
        of.zero_grad()
        return dense

    def step(of, batch):
        loss_of(of, batch).backward()

    try:
        exact = gradients(exact_twin, in_float64(batch), step)
    except (RuntimeError, TypeError):
        return None
    fast = lockstep.function(step, when="always", numerics="default")
    for _ in range(CALLS):
        found = gradients(twin, batch, fast)
        _C.wait_for_kernels()
    eager = gradients(model, batch, step)
    return {"eager": distance(eager, exact), "default": distance(found, exact)}
