"""Sizes of files, a README in each folder, and nothing of the machine a file was written on."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from structure_files import ROOT, SOURCE, files_with, project_files, text_of  # noqa: E402

LONGEST = 800
README_LINES = 150
TEXT = {".md", ".txt", ".json", ".toml", ".cfg", ".ini", ".yml", ".yaml", ".lst", ".ir", ""}
# Absolute paths of homes and work folders, and hosts of package registries. Written in pieces, so
# that this file does not hold what it looks for.
FOREIGN = re.compile(
    r"(?<![\w.$}])/(?:work|workspace|root|opt/" + r"venv|tmp/" + r"brief|home/\w+|Users/\w+)/"
    r"|pypi" + r"\.org|python" + r"hosted|download\.pytorch" + r"\.org"
)


def test_no_source_file_is_too_long():
    long = [
        f"{path}: {count} lines"
        for path in files_with(SOURCE)
        if (count := text_of(path).count("\n")) > LONGEST
    ]
    assert not long, "\n".join(long)


def test_each_folder_with_sources_has_a_readme():
    folders = {path.parent for path in files_with(SOURCE)} - {Path(".")}
    without = sorted(str(f) for f in folders if not (ROOT / f / "README.md").is_file())
    assert not without, "no README.md in: " + ", ".join(without)


def test_the_root_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= README_LINES
    for command in ("bash scripts/demo.sh", "bash scripts/test.sh"):
        assert command in text


def test_links_between_documents_lead_somewhere():
    broken = []
    for path in project_files():
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text_of(path)):
                if not (ROOT / path.parent / target).exists():
                    broken.append(f"{path} links to {target}")
    assert not broken, "\n".join(broken)


def test_no_file_holds_a_path_of_the_machine_it_was_written_on():
    found = []
    for path in project_files():
        if path.suffix in SOURCE | TEXT:
            for number, line in enumerate(text_of(path).splitlines(), 1):
                match = FOREIGN.search(line)
                if match:
                    found.append(f"{path}:{number}: {match.group()}")
    assert not found, "\n".join(found)
