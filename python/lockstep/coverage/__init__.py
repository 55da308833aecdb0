"""The coverage harness: other people's code with and without Lockstep, compared bit for bit.

`python -m lockstep.coverage --help` says how to run it; docs/coverage.md what its numbers mean.
"""

from .case import CALLS, BadInput, Case, Program, Run, Skip, one_program

__all__ = ["CALLS", "BadInput", "Case", "Program", "Run", "Skip", "one_program"]
