"""The command that runs one program again, as it is printed."""

from __future__ import annotations

import shlex


def reproduce(case_id: str, program: str, way: str) -> str:
    """One line for a shell; quoted where the names need it."""
    parts = ["python", "-m", "lockstep.coverage"]
    if case_id.startswith("function/"):
        return shlex.join([*parts, "--function", case_id.removeprefix("function/"), "--way", way])
    parts += ["--case", case_id]
    if program:
        parts += ["--program", program]
    if way != "strict":
        parts += ["--way", way]
    return shlex.join(parts)
