"""`python -m lockstep script.py args...`: runs an unchanged script inside a session."""

import io
import os
import sys
import types

from lockstep.session import session

USAGE = "usage: python -m lockstep script.py [arguments of the script]"


def _compile(path: str):
    if not os.path.isfile(path):
        sys.exit(f"lockstep: no script {path!r}: give the path of a file that exists\n{USAGE}")
    with io.open_code(path) as file:
        source = file.read()
    return compile(source, path, "exec", dont_inherit=True)


def _run(code, path: str) -> None:
    """Runs the code as the module `__main__`, with the folder of the script first on the path."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = module
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    with session():
        exec(code, module.__dict__)


def main() -> None:
    """Runs the script that the command line names, which sees its own arguments and exit status."""
    if len(sys.argv) < 2:
        sys.exit(f"lockstep: the path of a script is missing: give one\n{USAGE}")
    sys.argv = sys.argv[1:]
    path = sys.argv[0]
    try:
        _run(_compile(path), path)
    except Exception as error:
        traceback = error.__traceback__
        while traceback and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next  # the script's own frames begin here
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        sys.exit(1)


if __name__ == "__main__":
    main()
