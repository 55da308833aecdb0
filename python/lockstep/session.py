"""`with lockstep.session()`: lockstep around code that cannot be put into a function."""

from lockstep import knobs
from lockstep._check import load_library
from lockstep.errors import Error
from lockstep.function import is_disabled

_C = load_library()


class session:
    """Runs the body of the `with` block in lockstep, without a barrier until its end. Can be entered again later.

    Raises:
        Error: for an unknown option, or a session that is entered twice or closed twice.
    """

    def __init__(self, **options):
        self._options = knobs.check_knobs("lockstep.session", options)
        self.core = _C.Function()
        self.core.name = "session"
        self._is_open = False
        self._runs = False

    def __enter__(self):
        if self._is_open:
            raise Error("session_open", "lockstep.session", "this session is open already: close it first")
        self._is_open = True
        settings = knobs.current(self._options)
        self._runs = not is_disabled() and settings["when"] != "never"
        if self._runs:
            self.core.waits_for_errors = settings["errors"] == "exact"
            self.core.set_runner(settings["runner"])
            self.core.begin()
        return self

    def __exit__(self, kind, error, traceback):
        self._close(quietly=kind is not None)

    def close(self) -> None:
        """Ends the session where no `with` block does."""
        self._close(quietly=False)

    def _close(self, quietly: bool) -> None:
        if not self._is_open:
            raise Error("session_closed", "lockstep.session", "this session is closed already")
        self._is_open = False
        if self._runs:
            self.core.end(quietly)
