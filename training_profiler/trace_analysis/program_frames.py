"""Which files of a recorded stack are of the program: not of torch, the standard library or this package."""

import re
import sys
from typing import Final

_LIBRARY: Final = re.compile(r"(^|/)(?:torch|training_profiler)/")
_STANDARD: Final = re.compile(r"/lib/python3[^/]*/(?!site-packages/|dist-packages/)")
_FROZEN: Final = "<frozen "


def is_of_program(file: str) -> bool:
    """Return whether a file is the program's own or one of its libraries; torch writes paths below ``sys.path``."""
    if _LIBRARY.search(file) or _STANDARD.search(file) or file.startswith(_FROZEN):
        return False
    top = file.partition("/")[0]
    return top.removesuffix(".py") not in sys.stdlib_module_names
