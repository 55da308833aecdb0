"""`python -m lockstep [--explain] script.py args...`: runs an unchanged script inside a session."""

import importlib.machinery
import io
import os
import sys
import types

from lockstep.explain import explain
from lockstep.session import session

USAGE = "usage: python -m lockstep [--explain] script.py [arguments of the script]"
HELP = f"""{USAGE}

Runs an unchanged script inside of one lockstep.session(). What stands after the script belongs to
the script.

  -h, --help   show this and exit
  --explain    print lockstep.explain of the session to standard error when the script has ended

A session co-executes always, except under LOCKSTEP_WHEN=never and LOCKSTEP_DISABLE=1.
"""


def _compile(path: str):
    if not os.path.isfile(path):
        sys.exit(f"lockstep: no script {path!r}: give the path of a file that exists\n{USAGE}")
    with io.open_code(path) as file:
        source = file.read()
    if b"\0" in source:
        sys.exit(
            f"lockstep: {path!r} holds null bytes: give a script of Python's, no archive\n{USAGE}"
        )
    return compile(source, os.path.abspath(path), "exec", dont_inherit=True)


def _options(arguments: list[str]) -> tuple[bool, list[str]]:
    """Whether `--explain` stands before the script; the script and what follows it."""
    wants_explain = False
    while arguments and arguments[0].startswith("-"):
        option, *arguments = arguments
        if option in ("-h", "--help"):
            print(HELP, end="")
            sys.exit(0)
        if option != "--explain":
            message = f"no option {option!r}: there are -h, --help and --explain"
            sys.exit(f"lockstep: {message}\n{USAGE}")
        wants_explain = True
    return wants_explain, arguments


def _run(code, path: str, wants_explain: bool) -> None:
    """Runs the code as the module `__main__`, with the folder of the script first on the path."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path,
        __cached__=None,
        __builtins__=__builtins__,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __annotations__={},
    )
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:  # what processes of multiprocessing call it
        sys.modules["__mp_main__"] = module
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    whole = session()
    try:
        with whole:
            exec(code, module.__dict__)
    finally:
        if wants_explain and sys.stderr is not None:
            print(explain(whole), file=sys.stderr)


def _show(error: BaseException) -> None:
    """Reports what the script raised, as Python does: from the script's own frames on."""
    traceback = error.__traceback__
    while traceback and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)


def main() -> None:
    """Runs the script that the command line names, which sees its own arguments and exit status."""
    wants_explain, arguments = _options(sys.argv[1:])
    if not arguments:
        sys.exit(f"lockstep: the path of a script is missing: give one\n{USAGE}")
    sys.argv = arguments
    path = sys.argv[0]
    try:
        _run(_compile(path), os.path.abspath(path), wants_explain)
    except KeyboardInterrupt as error:
        _show(error)
        sys.excepthook = lambda *shown: None
        raise  # so that the process ends as one that was interrupted
    except SystemExit:
        raise
    except BaseException as error:
        _show(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
