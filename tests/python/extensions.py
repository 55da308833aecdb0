"""Extension modules that are built for tests (CMakeLists.txt)."""

import importlib.util
import sysconfig
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"


def load(name):
    path = BUILD / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
