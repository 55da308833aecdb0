"""The project's own files, for the tests in this folder."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SKIPPED = {"build", ".git", ".venv", "__pycache__", ".ruff_cache", ".pytest_cache", ".ccache"}
CPP = {".h", ".cpp"}
SOURCE = CPP | {".py", ".sh", ".cmake"}


def project_files():
    """All files git knows or would add, as paths relative to the root; all of them without git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [Path(line) for line in done.stdout.splitlines()]
    except (OSError, subprocess.CalledProcessError):
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
    return sorted(
        path
        for path in paths
        if not SKIPPED.intersection(path.parts)
        and not any(part.startswith("build-") for part in path.parts)
        and (ROOT / path).is_file()
    )


def files_with(suffixes, folders=None):
    return [
        path
        for path in project_files()
        if path.suffix in suffixes and (folders is None or path.parts[0] in folders)
    ]


def text_of(path):
    return (ROOT / path).read_text(errors="replace")
