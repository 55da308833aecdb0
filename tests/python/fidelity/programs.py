"""Runs small programs in interpreters of their own, for what cannot be tested within one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from conftest import HERE, PACKAGE_ROOT


def run_program(source, *arguments, flags=(), timeout=60, expect=0, **variables):
    """Runs `source` with python -c and returns its CompletedProcess; asserts its exit status."""
    path = os.pathsep.join([os.environ.get("PYTHONPATH", str(PACKAGE_ROOT)), str(HERE)])
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(source), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == expect, f"exit {done.returncode}: {done.stdout}\n{done.stderr}"
    return done
