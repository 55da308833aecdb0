"""The journal: one JSON line a case, after one line about the run. A run is resumed from it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from .case import BadInput

FORMAT = 1


def read_journal(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The header and the last result of each case; a line cut off by a crash is dropped."""
    opener = gzip.open if path.suffix == ".gz" else open
    header: dict[str, Any] = {}
    results: dict[str, dict[str, Any]] = {}
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if "case" in entry:
                    results[entry["case"]] = entry
                else:
                    header = entry
    except OSError as e:
        raise BadInput(f"cannot read the journal {path}: {e.strerror or e}") from None
    if header.get("format", FORMAT) != FORMAT:
        raise BadInput(f"the journal {path} has format {header['format']}, not {FORMAT}")
    return header, results


class Journal:
    """Appends results; every line is on disk before the next case starts."""

    def __init__(self, path: Path, header: dict[str, Any], resume: bool) -> None:
        self.done: dict[str, dict[str, Any]] = {}
        if resume and path.exists():
            old, self.done = read_journal(path)
            if old.get("way") != header.get("way"):
                raise BadInput(
                    f"the journal {path} is of way {old.get('way')!r}, this run of "
                    f"{header.get('way')!r}; name another journal"
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not self.done:
            path.replace(path.with_name(path.name + ".old"))  # hours of work, it may be
        self._file = open(path, "a" if self.done else "w", encoding="utf-8")
        if not self.done:
            self._write({"format": FORMAT, **header})
        elif not path.read_bytes().endswith(b"\n"):
            self._file.write("\n")  # behind a line that a crash cut off

    def add(self, result: dict[str, Any]) -> None:
        self.done[result["case"]] = result
        self._write(result)

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry, default=str, separators=(",", ":")) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
