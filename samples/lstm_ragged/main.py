"""An LSTM written by hand over lines of different lengths. See README.md for the options."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from samples.common.driver import main  # noqa: E402
from samples.lstm_ragged.program import make  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(make))
