"""YOLOv3 for digits placed on photographs. See README.md for the options."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from samples.common.driver import main  # noqa: E402
from samples.yolov3.program import make  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(make))
