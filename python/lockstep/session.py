"""`with lockstep.session()`: lockstep around code that cannot be put into a function."""

import threading

from lockstep import knobs
from lockstep._check import load_library
from lockstep.errors import Error
from lockstep.knobs import is_disabled

_C = load_library()


_USE = "use it as `with lockstep.session():`; to decorate a function, there is `lockstep.function`"


class session:
    """Runs the body of the `with` block in lockstep, without a barrier until its end.

    A session can be entered again later and then knows what it has seen. Inside of another session
    or of a decorated function it is a part of that one. `lockstep.stats` and `lockstep.explain`
    take it.

    Args:
        **options: see `lockstep.KNOBS`.

    Raises:
        Error: for an unknown option, a session that is entered twice or closed twice, or one that
            is closed by another thread than the one that opened it.
    """

    def __init__(self, *unexpected, **options):
        if unexpected:
            raise Error("unknown_option", "lockstep.session", f"takes only options: {_USE}")
        self._options = knobs.check_knobs("lockstep.session", options)
        self._is_used = False
        self.core = _C.Function()
        self.core.name = "session"
        self._claim = threading.Lock()  # of who opens it, until it is closed
        self._is_open = False
        self._runs = False
        self._thread = None

    def __call__(self, *args, **kwargs):
        self._is_used = True  # what follows says enough
        raise Error("not_callable", "lockstep.session", f"is no decorator: {_USE}")

    def __enter__(self):
        self._is_used = True
        if not self._claim.acquire(blocking=False):
            message = "this session is open already: close it first, or make another one"
            raise Error("session_open", "lockstep.session", message)
        try:
            when, settings = knobs.for_core(self._options)
            self._runs = not is_disabled() and when != "never"
            if self._runs:
                self.core.configure(settings)
                self._thread = threading.get_ident()
                self.core.begin()
            self._is_open = True  # where nothing was refused
        finally:
            if not self._is_open:
                self._claim.release()
        return self

    def __exit__(self, kind, error, traceback):
        self._close(quietly=kind is not None)

    def close(self) -> None:
        """Ends the session where no `with` block does."""
        self._close(quietly=False)

    def __del__(self):
        # A session that nobody can close any more; on another thread it stays open with its thread.
        if getattr(self, "_is_open", False) and self._thread in (None, threading.get_ident()):
            self._close(quietly=True)
        knobs.warn_unless_used(getattr(self, "_is_used", True), "session")

    def _close(self, quietly: bool) -> None:
        if not self._is_open:
            message = "this session is not open: enter it with `with`, and close it once"
            raise Error("session_closed", "lockstep.session", message)
        if self._runs and self._thread != threading.get_ident():
            message = "another thread opened this session: close it there"
            raise Error("session_thread", "lockstep.session", message)
        self._is_open = False
        try:
            if self._runs:
                self.core.end(quietly)
        finally:
            self._claim.release()
