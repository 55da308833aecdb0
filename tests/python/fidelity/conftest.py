"""Fixtures of the fidelity tests, and the mark that ties a test to an item of items.toml."""

from __future__ import annotations

import gc
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE_ROOT = HERE.parents[2] / "python"


def pytest_configure(config):
    config.addinivalue_line("markers", "item(id): the item of items.toml that the test covers")


@pytest.fixture(autouse=True)
def nothing_left():
    """Every test ends with the Python threads it began with."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    left = [t for t in threading.enumerate() if t not in before and t.is_alive() and not t.daemon]
    assert not left, f"threads left behind: {left}"


@pytest.fixture(scope="session")
def raw_pointer(tmp_path_factory):
    """The C extension of ext/, built with setuptools: takes an address and a length."""
    folder = tmp_path_factory.mktemp("ext")
    script = (
        "from setuptools import setup, Extension\n"
        f"setup(name='raw_pointer', ext_modules=[Extension('raw_pointer', "
        f"[{str(HERE / 'ext' / 'raw_pointer.c')!r}])], script_args=['-q', 'build_ext', "
        f"'--build-lib', {str(folder)!r}, '--build-temp', {str(folder / 'obj')!r}])\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=folder, timeout=60)
    name = f"raw_pointer{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert (folder / name).exists()
    sys.path.insert(0, str(folder))
    try:
        import raw_pointer as module

        yield module
    finally:
        sys.path.remove(str(folder))
