"""Makes the package importable from the sources and keeps kernels on one thread.

Cases run in forked children: a second OpenMP thread of this process would hang them.
"""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[3] / "python"
if str(PACKAGE_ROOT) not in sys.path:
    sys.path.insert(0, str(PACKAGE_ROOT))

import torch  # noqa: E402

torch.set_num_threads(1)
