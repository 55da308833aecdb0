"""`python -m lockstep script.py args...`: runs an unchanged script inside a session."""

import runpy
import sys

from lockstep.session import session


def main() -> None:
    """Runs the script that the command line names as `__main__`."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m lockstep script.py [arguments]: the path of a script is missing")
    sys.argv = sys.argv[1:]
    with session():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
