"""Runs the C++ tests with ctest and each pytest file in a process of its own, and adds them up.

A file that crashes, hangs or cannot be collected counts as one failed test.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests", "samples", "python")


def build_folder():
    """The binary folder of the preset `release`."""
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    by_name = {preset["name"]: preset for preset in presets}
    preset = by_name["release"]
    while "binaryDir" not in preset:
        parents = preset["inherits"]
        preset = by_name[parents if isinstance(parents, str) else parents[0]]
    folder = preset["binaryDir"].replace("${sourceDir}", str(ROOT))
    return Path(folder.replace("${presetName}", "release"))


def run_with_limit(command, limit_s):
    """(exit status or None after the limit, output); kills the whole process group."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def number(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def run_cpp_tests():
    """(passed, failed, what to show)"""
    command = [
        "ctest",
        "--test-dir",
        str(build_folder()),
        "--output-on-failure",
        "--timeout",
        "300",
    ]
    status, output = run_with_limit(command, 3600)
    # "100% tests passed out of 17", "94% tests passed, 1 tests failed out of 17": by ctest
    total = number(r"tests passed.* out of (\d+)", output)
    failed = number(r"(\d+) tests? failed", output)
    if not total or (status and not failed):
        failed = max(failed, 1)
    return max(total - failed, 0), failed, output if failed else ""


def run_pytest_file(path, limit_s):
    """(passed, failed, what to show)"""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", path]
    status, output = run_with_limit(command, limit_s)
    summary = (output.strip().splitlines() or [""])[-1]
    passed = number(r"(\d+) passed", summary)
    failed = number(r"(\d+) failed", summary) + number(r"(\d+) errors?\b", summary)
    if status is None:
        return passed, failed + 1, f"{output}\n{path}: no end after {limit_s} s"
    if status not in (0, 1, 5) and not failed:
        return 0, 1, f"{output}\n{path}: the process ended with status {status}"
    return passed, max(failed, int(status == 1)), output if failed or status == 1 else ""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("only", nargs="*", help="parts of paths: run only these pytest files")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for one pytest file")
    parser.add_argument("--no-cpp", action="store_true", help="leave out the C++ tests")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    passed = failed = 0
    bad = []

    def count(name, began, result):
        nonlocal passed, failed
        passed, failed = passed + result[0], failed + result[1]
        if result[1]:
            bad.append(name)
            print(result[2], flush=True)
        seconds = time.monotonic() - began
        print(f"{result[0]:5d} passed {result[1]:4d} failed {seconds:6.0f} s  {name}", flush=True)

    if not arguments.only and not arguments.no_cpp:
        began = time.monotonic()
        count("C++ tests (ctest)", began, run_cpp_tests())
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("test_*.py"))
    for file in files:
        path = str(file.relative_to(ROOT))
        if arguments.only and not any(part in path for part in arguments.only):
            continue
        began = time.monotonic()
        count(path, began, run_pytest_file(path, arguments.limit))
    if bad:
        print("with failures: " + ", ".join(bad))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
