"""Every knob and every reason stands in the documents with its meaning, and is used."""

import re
import sys
from pathlib import Path

import lockstep

sys.path.insert(0, str(Path(__file__).resolve().parent))

from structure_files import ROOT, files_with, text_of  # noqa: E402

TABLES = {"graph/reasons.h", "graph/reasons.cpp"}
ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def rows(document):
    """name -> rest of the row, of all table rows that start with a name in backquotes."""
    return dict(ROW.findall((ROOT / "docs" / document).read_text()))


def test_every_knob_is_documented_with_default_and_meaning():
    documented = rows("knobs.md")
    for name, knob in lockstep.KNOBS.items():
        assert name in documented, f"docs/knobs.md has no row for `{name}`"
        assert f"`{knob.default!r}`" in documented[name], f"`{name}`: default is {knob.default!r}"
        assert knob.meaning in documented[name], f"`{name}`: the meaning differs from the table's"


def test_every_documented_knob_exists():
    unknown = set(rows("knobs.md")) - set(lockstep.KNOBS)
    assert not unknown, f"docs/knobs.md has rows for {sorted(unknown)}"


def test_every_pass_is_documented():
    documented = rows("passes.md")
    assert list(documented) == list(lockstep.knobs.PASSES), "all passes, in their order"
    for name, meaning in lockstep.knobs.PASSES.items():
        assert documented[name] == meaning, f"`{name}`: the meaning differs from the table's"


def test_every_reason_is_documented():
    documented = rows("explain.md")
    for name, sentence in lockstep.REASONS.items():
        assert name in documented, f"docs/explain.md has no row for `{name}`"
        assert sentence in documented[name], f"`{name}`: the sentence differs from the table's"


def test_every_documented_reason_exists():
    unknown = set(rows("explain.md")) - set(lockstep.REASONS)
    assert not unknown, f"docs/explain.md has rows for {sorted(unknown)}"


def test_every_reason_is_used():
    text = "\n".join(
        text_of(path)
        for path in files_with({".h", ".cpp", ".py"})
        if path.parts[0] in ("graph", "tracer", "dynamic", "coexec", "python")
        and str(path) not in TABLES
    )
    unused = [name for name in lockstep.REASONS if not re.search(rf"Reason::{name}\b", text)]
    assert not unused, f"reasons that nothing gives: {unused}"


def test_every_reason_in_the_sources_is_in_the_table():
    used = set()
    for path in files_with({".h", ".cpp"}):
        used.update(re.findall(r"\bReason::(\w+)\b", text_of(path)))
    unknown = used - set(lockstep.REASONS) - {"count_"}
    assert not unknown, f"not in the table: {sorted(unknown)}"
