"""Writes the tables of knobs and reasons in docs/ anew, from those of the package.

Run it with PYTHONPATH=python after a change of either table. What a row of docs/ says beyond the
package's sentence stays.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "python"))

import lockstep  # noqa: E402


def replace_table(document, head, rows):
    """Puts `rows` in the place of those of the table with this head."""
    path = ROOT / "docs" / document
    text = path.read_text()
    start = text.index(head) + len(head)
    end = start
    while text.startswith("|", end):
        end = text.index("\n", end) + 1
    known = text[start:end].splitlines()
    longer = {
        row: next((k for k in known if k.startswith(row.removesuffix(" |"))), row) for row in rows
    }
    path.write_text(text[:start] + "".join(longer[row] + "\n" for row in rows) + text[end:])


def main():
    knobs = [f"| `{n}` | `{k.default!r}` | {k.meaning} |" for n, k in lockstep.KNOBS.items()]
    replace_table("knobs.md", "| knob | default | meaning |\n|---|---|---|\n", knobs)
    reasons = [f"| `{name}` | {sentence} |" for name, sentence in lockstep.REASONS.items()]
    replace_table("explain.md", "| reason | meaning |\n|---|---|\n", reasons)


if __name__ == "__main__":
    main()
