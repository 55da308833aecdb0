"""Options that stand alone, in the environment, or on what is decorated twice."""

import warnings

import lockstep
import pytest
import torch
from lockstep.knobs import warn_of_misspelt_names
from test_session import run_code, run_python

X = torch.ones(2)


def plain(x):
    return x + 1


def warnings_of(do):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    return [(str(warning.message), warning.filename) for warning in caught]


@pytest.mark.parametrize("name, options", [("config", {"numerics": "strict"}), ("session", {})])
def test_what_does_nothing_by_itself_says_so(name, options):
    def alone():
        getattr(lockstep, name)(**options)

    sentence = f"lockstep.{name}(...) does nothing by itself: use it in a `with` statement"
    assert warnings_of(alone) == [(sentence, __file__)]

    def used():
        with getattr(lockstep, name)(**options):
            pass

    def refused():
        with pytest.raises(lockstep.Error):
            getattr(lockstep, name)(zzz=1)

    assert warnings_of(used) == warnings_of(refused) == []
    lockstep.reset()


def test_config_refuses_where_it_is_made():
    with pytest.raises(lockstep.Error, match="no option 'numeric'"):
        lockstep.config(numeric="strict")


def test_config_decorates_functions():
    seen = []

    @lockstep.config(when="never")
    def run(depth):
        seen.append(lockstep.knobs.current({})["when"])
        if depth:
            run(depth - 1)
        seen.append(lockstep.knobs.current({})["when"])

    assert warnings_of(lambda: run(2)) == []
    assert seen == ["never"] * 6 and lockstep.knobs.current({})["when"] == "auto"


@pytest.mark.parametrize("same", [["split"], ("split",), {"split"}, "split", " split, "])
def test_several_values_are_the_same_however_they_are_given(same):
    decorated = lockstep.function(plain, without=["split"])
    assert lockstep.function(decorated, without=same) is decorated
    with pytest.raises(lockstep.Error, match="conflicts"):
        lockstep.function(decorated, without="fuse")


def test_values_in_the_environment_are_checked_at_import():
    done = run_python("-c", "import lockstep", LOCKSTEP_WHEN="sometimes")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "environment variable LOCKSTEP_WHEN: when='sometimes' cannot be" in last
    run_code("import lockstep", LOCKSTEP_WHEN="sometimes", LOCKSTEP_DISABLE="1")
    run_code("import lockstep", LOCKSTEP_WHEN="never", LOCKSTEP_DETERMINISTIC="yes")


@pytest.mark.parametrize(
    "name, meant",
    [("ENABLE", "DISABLE, its opposite"), ("VERBOSE", "LOG"), ("Debug", "LOG")],
)
def test_words_that_others_use(monkeypatch, name, meant):
    monkeypatch.setenv(f"LOCKSTEP_{name}", "0")
    ((said, _),) = warnings_of(warn_of_misspelt_names)
    assert said == f"LOCKSTEP_{name} is not read by Lockstep: did you mean LOCKSTEP_{meant}?"


def test_a_cache_that_begins_at_home(tmp_path):
    code = """
        import lockstep, torch
        from lockstep import _C
        step = lockstep.function(lambda x: (x * 2).exp() + 1, when="always", numerics="default")
        for _ in range(5):
            step(torch.ones(1 << 16))
            _C.wait_for_kernels()
    """
    run_code(code, LOCKSTEP_CACHE="~/kernels", HOME=str(tmp_path))
    assert list((tmp_path / "kernels").iterdir())
