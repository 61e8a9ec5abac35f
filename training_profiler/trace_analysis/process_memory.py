"""How the process of the command takes memory for large columns."""

import ctypes
from contextlib import suppress
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # these two of mallopt(3)
M_MMAP_MAX: Final = -4


def keep_memory() -> None:
    """Have this process keep the memory that it gives back, in small pages; for a process that ends after one command.

    Memory of large columns would go back to the system each time, which clears every page of the next column; huge
    pages are cleared beyond what is used of them. Only with glibc and versions of NumPy that can change it.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library; TypeError: Windows has no CDLL of None
        change = ctypes.CDLL(None).mallopt
        change(M_MMAP_MAX, 0)
        change(M_TRIM_THRESHOLD, 2**31 - 1)
    with suppress(ImportError):  # private: may be gone
        from numpy._core.multiarray import _set_madvise_hugepage  # type: ignore[attr-defined]

        _set_madvise_hugepage(False)
