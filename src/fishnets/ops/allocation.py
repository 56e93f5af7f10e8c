"""Lets a process keep the memory that it frees.

The C library of Linux gives large tensors back to the system when they are freed, and takes them anew: every page is
then cleared once more, for each operation of each layer. On a graph of hundreds of thousands of edges that takes longer
than the operations themselves.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

MAPPINGS, TRIM = -4, -1  # names of its settings: M_MMAP_MAX, M_TRIM_THRESHOLD


def keep_freed_memory() -> bool:
    """Keeps freed memory for what is allocated next, from now on and in the whole process.

    It then holds as much memory as it ever needed at once, or somewhat more. Programs that train on a CPU may call this
    before they begin, as ``fishnets reproduce`` does. Nothing else changes.

    Returns:
        Whether the C library can be asked to: that of Linux (glibc) can.
    """
    if not sys.platform.startswith("linux"):
        return False
    ask = getattr(ctypes.CDLL(None), "mallopt", None)
    return ask is not None and all(ask(name, value) == 1 for name, value in ((MAPPINGS, 0), (TRIM, -1)))
