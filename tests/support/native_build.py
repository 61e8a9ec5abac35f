"""A pytest plugin (-p): the recorder in C comes from the folder NATIVE_BUILD, such as a build with AddressSanitizer."""

import importlib.util
import os
import sys
from pathlib import Path

NAME = "training_profiler.recording._native"

(_file,) = Path(os.environ["NATIVE_BUILD"]).glob(NAME.replace(".", "/") + ".*")
_spec = importlib.util.spec_from_file_location(NAME, _file)
assert _spec is not None
assert _spec.loader is not None
sys.modules[NAME] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[NAME])
