"""Places in the user's program, as the tracer writes them: `file:line in function`."""

import linecache
import os
import re
import sys

_SOURCE_WIDTH = 60
_PLACE = re.compile(r"(?P<file>\S.*):(?P<line>\d+) in (?P<function>.+)")
_PATH = re.compile(r"(?:(?<= )|^)/[^\n]*?(?=:\d+ in )")


def split_place(where: str) -> dict:
    """A place as dict of `where`, `file`, `line`, `function` and the `source` text of the line."""
    found = _PLACE.fullmatch(where)
    file, number = (found["file"], int(found["line"])) if found else ("", 0)
    return {
        "where": where,
        "file": file,
        "line": number,
        "function": found["function"] if found else "",
        "source": linecache.getline(file, number).strip(),
    }


def describe_line(line: dict) -> str:
    """A row's place and the beginning of its source, for tables."""
    source = line["source"]
    if len(source) > _SOURCE_WIDTH:
        source = source[: _SOURCE_WIDTH - 1] + "…"
    return f"{shorten(line['where'])}: {source}"


def shorten(text: str) -> str:
    """Paths relative to the working directory, else to the folder that Python imported from."""
    return _PATH.sub(lambda match: _short_path(match.group()), text)


def _short_path(path: str) -> str:
    folders = [os.getcwd(), *sorted(filter(None, sys.path), key=len, reverse=True)]
    for folder in folders:
        prefix = os.path.join(os.path.abspath(folder), "")
        if path.startswith(prefix) and prefix != os.sep:
            return path[len(prefix) :]
    return path
