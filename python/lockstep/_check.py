"""Refuses unsupported machines and versions with a sentence, before anything of ours is loaded."""

import platform
import sys


def check_platform() -> None:
    """Raises ImportError with what to do where this build cannot run."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
        found = f"{sys.implementation.name} {platform.python_version()}"
        raise ImportError(
            f"lockstep needs CPython 3.11, this is {found}: make an environment with Python 3.11"
        )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        found = f"{sys.platform} {platform.machine()}"
        raise ImportError(f"lockstep runs on Linux x86-64, this is {found}: use such a machine")
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"lockstep needs PyTorch 2.13, which does not import ({error}): "
            "pip install torch==2.13.0"
        ) from error
    if torch.__version__.split("+")[0].split(".")[:2] != ["2", "13"]:
        raise ImportError(
            f"lockstep needs PyTorch 2.13, found {torch.__version__}: pip install torch==2.13.0"
        )


def load_library():
    """Imports the C++ half, or says how to build it."""
    check_platform()
    try:
        from lockstep import _C
    except ImportError as error:
        raise ImportError(
            "the C++ library of lockstep is not there or does not load "
            f"({error}): build it with scripts/setup.sh, or pip install --no-build-isolation ."
        ) from error
    return _C
