"""What holds for all tests in Python: strict numerics where a test names no other."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory):
    """Bits are compared, and nothing is known from earlier processes or left for later ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_NUMERICS", "strict")
        patch.setenv("LOCKSTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
