"""`--shrink SEED`: cuts a failing program of the random-program generator down.

The generator is part of the tests, so this needs the sources beside the package.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .case import BadInput

_SWEEP = Path(__file__).resolve().parents[3] / "tests" / "python" / "random_programs" / "sweep.py"


def shrink_program(seed: str) -> int:
    """Runs the program of a seed and, where it fails, prints the smallest that still fails."""
    if not seed.isdigit():
        raise BadInput(f"--shrink takes the seed of a random program, a number, not {seed!r}")
    if not _SWEEP.exists():
        raise BadInput("--shrink needs the source folder of Lockstep, which has the generator")
    command = [sys.executable, str(_SWEEP), "--start", seed, "--count", "1", "--shrink"]
    return subprocess.run(command, check=False).returncode
