"""Random streams that belong to one copy of a program, so that two copies train side by side."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seeds the global generators of torch, numpy and random."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class RandomStreams:
    """The global generators' states as one copy sees them.

    Inside `with streams:` the global generators continue where this copy left them; on the way
    out their states are kept here and the generators go back to what they were before.
    """

    def __init__(self, seed: int):
        outside = _get_states()
        seed_all(seed)
        self._inside = _get_states()
        self._outside = outside
        _set_states(outside)

    def __enter__(self) -> RandomStreams:
        self._outside = _get_states()
        _set_states(self._inside)
        return self

    def __exit__(self, *exception) -> None:
        self._inside = _get_states()
        _set_states(self._outside)

    def duplicate(self) -> RandomStreams:
        """Streams that go on from where these are now, independently of them."""
        return copy.copy(self)

    def state(self) -> dict[str, object]:
        """The three states by name, comparable by value."""
        torch_state, numpy_state, python_state = self._inside
        words = torch.from_numpy(numpy_state[1].astype(np.int64))
        return {
            "random.torch": torch_state,
            "random.numpy": words,
            "random.numpy.position": numpy_state[2:],
            "random.python": python_state,
        }


def _get_states() -> tuple:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_states(states: tuple) -> None:
    torch_state, numpy_state, python_state = states
    torch.set_rng_state(torch_state)
    np.random.set_state(numpy_state)
    random.setstate(python_state)
