"""`python -m lockstep.coverage`: sets what libraries read when they load, then runs the harness."""

from __future__ import annotations

import os
import sys

# Read once, when the libraries load: no thread may start before the workers are forked, and
# nothing may be fetched.
ENVIRONMENT = {
    # glibc's cache of small blocks hands them out without the pattern that judge.py asks for.
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    "OPENBLAS_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONHASHSEED": "0",
}


def main() -> int:
    missing = {k: v for k, v in ENVIRONMENT.items() if os.environ.get(k) != v}
    if missing and os.environ.get("LOCKSTEP_COVERAGE_CHILD") != "1":
        os.environ.update(missing, LOCKSTEP_COVERAGE_CHILD="1")
        os.execv(sys.executable, [sys.executable, "-m", "lockstep.coverage", *sys.argv[1:]])
    from .cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
