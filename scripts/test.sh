#!/usr/bin/env bash
# Command two: builds and runs all tests; the last line is "N passed, N failed".
#
#   bash scripts/test.sh                all C++ tests, then each pytest file in its own process
#   bash scripts/test.sh fidelity       only the pytest files with this in their path
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
export PATH="${LOCKSTEP_VENV:-$PWD/.venv}/bin:$PATH" PYTHONPATH="$PWD/python"
exec python scripts/run_tests.py "$@"
