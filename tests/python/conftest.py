"""What holds for all tests in Python."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def nothing_remembered(tmp_path_factory):
    """Choices and kernels of earlier processes say nothing here, and none are left behind."""
    before = os.environ.get("LOCKSTEP_CACHE")
    os.environ["LOCKSTEP_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["LOCKSTEP_CACHE"]
    else:
        os.environ["LOCKSTEP_CACHE"] = before
