"""Runs a function eagerly and in lockstep, and compares bit for bit."""

import lockstep
import torch


def bits(value):
    """What is compared: dtype, shape and bytes of tensors, in the structure that holds them."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return value


def run_both(fn, calls, after_call=None):
    """Calls `fn` eagerly and decorated with the arguments of each call, and compares the results.

    `calls` is an iterable of argument tuples. `after_call(decorated, i)` runs after call i.
    Returns the decorated function.
    """
    fast = lockstep.function(fn, when="always")
    for i, arguments in enumerate(calls):
        want = bits(fn(*arguments))
        got = bits(fast(*arguments))
        assert got == want, f"call {i} differs from eager"
        if after_call:
            after_call(fast, i)
    return fast


def divergences_of_second_pass(fn, calls):
    """Divergences when all the calls are made again after a first pass."""
    calls = list(calls)
    fast = run_both(fn, calls)
    lockstep.reset_stats(fast)
    for arguments in calls:
        assert bits(fast(*arguments)) == bits(fn(*arguments))
    stats = lockstep.stats(fast)
    assert stats["graph_ops"] == stats["ops"] > 0, stats
    return stats["divergences"]
