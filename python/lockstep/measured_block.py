"""A `with` block in which one function is measured; the base of `profile` and `memory`."""

import threading

from lockstep.errors import Error
from lockstep.function import core_of


class MeasuredBlock:
    """What the process records once is open for one block at a time.

    Derived classes say `_tool`, `_kind` (of the error) and `_is_open` (the sentence of it), have a
    lock `_open`, and begin, end and keep what is recorded.
    """

    _tool: str
    _kind: str
    _is_open: str
    _open: threading.Lock

    def __init__(self, fn):
        self._core = core_of(fn, self._tool)
        self.name = self._core.name or type(fn).__name__

    def __enter__(self):
        if not self._open.acquire(blocking=False):
            raise Error(self._kind, self._tool, self._is_open)
        try:
            self._begin()
        except BaseException:
            self._open.release()
            raise
        return self

    def __exit__(self, kind, error, traceback):
        try:
            recorded = self._end()
        finally:
            self._open.release()
        self._keep(*recorded)

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> tuple:
        raise NotImplementedError

    def _keep(self, *recorded) -> None:
        raise NotImplementedError
