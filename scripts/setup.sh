#!/usr/bin/env bash
# Sets everything up on a fresh Debian machine with Python 3.11, and builds. Safe to run twice:
# what is there already is left alone.
#
#   bash scripts/setup.sh            packages, virtual environment .venv, build (preset release)
#
# LOCKSTEP_VENV=folder   use this virtual environment instead of .venv
# PYTHON=program         use this Python 3.11
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV="${LOCKSTEP_VENV:-$PWD/.venv}"
APT_PACKAGES=(build-essential libgtest-dev nlohmann-json3-dev ccache llvm-19-dev libzstd-dev zlib1g-dev)
BUILD_PACKAGES=(cmake ninja pybind11 scikit-build-core numpy)
RUN_PACKAGES=(tqdm rich scikit-learn scikit-image music21 gymnasium)
TEST_PACKAGES=(pytest expecttest coverage ruff accelerate transformers torch-geometric diffusers)

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else fail "these packages are missing: ${missing[*]}; install them as root, then run this again"
    fi
}

install_apt_packages() {
    missing=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    say "apt: ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        "${missing[@]}"
}

find_python() {
    for candidate in "${PYTHON:-}" python3.11 python3 python; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
        "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null &&
            { command -v "$candidate"; return; }
    done
    fail "no Python 3.11 found; install it, or name it with PYTHON=/path/to/python3.11"
}

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
    fail "this machine is $(uname -s) $(uname -m); only Linux x86-64 is supported"
command -v dpkg-query >/dev/null && install_apt_packages "${APT_PACKAGES[@]}"

if ! [ -x "$VENV/bin/python" ]; then
    PYTHON="$(find_python)"
    # Debian's own Python comes in parts: the venv module and the C headers are packages.
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || install_apt_packages python3.11-venv
    say "virtual environment $VENV"
    "$PYTHON" -m venv "$VENV"
fi
export PATH="$VENV/bin:$PATH"
python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    fail "$VENV holds $(python -V); delete it, or name another with LOCKSTEP_VENV"
python -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
' || install_apt_packages python3.11-dev

# pip is asked only when something changed, so that a second run needs no network.
wanted="$(cat constraints.txt scripts/setup.sh | sha256sum)"
if [ "$(cat "$VENV/.lockstep-packages" 2>/dev/null)" != "$wanted" ]; then
    say "PyTorch"
    python -m pip install -q --disable-pip-version-check torch==2.13.0
    say "Python packages"
    python -m pip install -q --disable-pip-version-check -c constraints.txt \
        "${BUILD_PACKAGES[@]}" "${RUN_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
    echo "$wanted" >"$VENV/.lockstep-packages"
fi

say "build"
cmake --preset release -DPython_EXECUTABLE="$VENV/bin/python"
cmake --build --preset release
PYTHONPATH=python python -c 'import lockstep' ||
    fail "the build ended, but lockstep cannot be imported from python/"
