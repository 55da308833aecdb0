"""Fixtures of the fidelity tests, and the mark that ties a test to an item of items.toml."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
PACKAGE_ROOT = HERE.parents[2] / "python"


def pytest_configure(config):
    config.addinivalue_line("markers", "item(id): the item of items.toml that the test covers")


@pytest.fixture(autouse=True)
def one_thread():
    """Kernels run on one thread, so that the tests stay quick on a machine with other work.

    The tests about threads choose their own number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_left():
    """Every test ends with the Python threads it began with."""
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in left:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in left), f"threads left behind: {left}"


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
