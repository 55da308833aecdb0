"""Lockstep: ordinary PyTorch training code, faster, with the same numbers and all of its Python."""

from lockstep._check import load_library

_C = load_library()

from lockstep.doors import install as _install_doors  # noqa: E402
from lockstep.errors import Error  # noqa: E402
from lockstep.explain import Explanation, explain  # noqa: E402
from lockstep.function import function, reset, reset_stats, stats  # noqa: E402
from lockstep.knobs import KNOBS, config  # noqa: E402
from lockstep.knobs import check_environment as _check_environment  # noqa: E402
from lockstep.knobs import install_log as _install_log  # noqa: E402
from lockstep.knobs import warn_of_misspelt_names as _warn_of_misspelt_names  # noqa: E402
from lockstep.memory import memory  # noqa: E402
from lockstep.optimizers import install as _install_optimizers  # noqa: E402
from lockstep.profile import profile  # noqa: E402
from lockstep.recording import graph_text, record_call  # noqa: E402
from lockstep.session import session  # noqa: E402
from lockstep.verify import verify  # noqa: E402

REASONS: dict[str, str] = _C.reasons()

_install_doors(_C)
_install_optimizers(_C)
_install_log(_C)
_check_environment()
_warn_of_misspelt_names()

__version__ = "0.1.0"
__all__ = [
    "KNOBS",
    "REASONS",
    "Error",
    "Explanation",
    "config",
    "explain",
    "function",
    "graph_text",
    "memory",
    "profile",
    "record_call",
    "reset",
    "reset_stats",
    "session",
    "stats",
    "verify",
]
