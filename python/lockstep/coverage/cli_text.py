"""Texts that are printed and kept: the command that runs a program again, paths made portable."""

from __future__ import annotations

import re
import shlex

# results are kept and compared between machines: no folder of this one
_FOLDERS = re.compile(r"(?:/[\w.+-]+)+/(?:site-packages/|lib/python3\.\d+/|python/(?=lockstep/))")


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


def portable(text: str) -> str:
    """The text with the paths of installed packages cut to where the package begins."""
    return _FOLDERS.sub("", text)
