"""The text form of a graph, and calls recorded for the replay without an interpreter."""

import contextlib
import os

from lockstep._check import load_library
from lockstep.errors import Error
from lockstep.function import core_of

_C = load_library()


def graph_text(fn) -> str:
    """The TraceGraph of a decorated function, module or session as text.

    Its grammar stands in graph/text.h.

    Raises:
        Error: for something that is not decorated.
    """
    return _C.graph_text(core_of(fn, "lockstep.graph_text"))


def _not_written(error) -> Error:
    message = f"{error}: give a folder that can be written"
    return Error("cannot_write", "lockstep.record_call", message)


@contextlib.contextmanager
def record_call(fn, folder):
    """Records the next call of `fn` in the `with` block into a folder, for `lockstep_replay`.

    The call runs in lockstep under when="auto" too, and with PyTorch's own kernels whatever
    `numerics` says: the replay has no others. Every op is waited for, and the bytes of all its
    inputs are written, so this is for small sizes.

    Args:
        fn: a decorated function, module or session; the outermost one of the call.
        folder: a path; made if it does not exist. Files in it are overwritten.

    Yields:
        The recorder: `is_done`, `event_count`, `opaque_count` (ops that only the program can
        run), `feed_count`, `refeed_count` (of them, storages that somebody else changed in the
        middle of the call).

    Raises:
        Error: for something that is not decorated, a folder that cannot be written (at the end of
            the block, where that shows then: the call itself has its result), a block inside of
            another one that waits for the same call, or a block without such a call.
    """
    core = core_of(fn, "lockstep.record_call")
    try:
        os.makedirs(folder, exist_ok=True)
        recorder = _C.CallRecorder(os.fspath(folder))
    except (OSError, RuntimeError) as error:
        raise _not_written(error) from None
    if not _C.record_next(core, recorder):
        message = "another lockstep.record_call waits for the next call of this function: close it"
        raise Error("recording_open", "lockstep.record_call", message)
    try:
        yield recorder
    finally:
        _C.record_next(core, None)
    if recorder.error:
        raise _not_written(recorder.error)
    if not recorder.is_done:
        raise Error(
            "nothing_recorded",
            "lockstep.record_call",
            "the function was not called inside of the block, ran eagerly, "
            "or was called by another decorated one",
        )
