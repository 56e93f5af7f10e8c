"""Compiles kernels of the CPU that are plain loops over float32, with Numba."""

from __future__ import annotations

from typing import Any

__all__ = ["compiled"]


def compiled(kernel: Any, arguments: str) -> Any:
    """Compiles a kernel of arrays, such as ``i1`` for whole numbers and ``f2`` for others in two dimensions.

    Two whole numbers follow, the first of what is to be done and the one after the last. Numba is imported when it is
    asked for the first time. Kernels let go of the interpreter while they run.
    """
    import numba

    kinds = {"i": numba.int64, "f": numba.float32}
    arrays = [numba.types.Array(kinds[one[0]], int(one[1]), "C") for one in arguments.split()]
    signature = (*arrays, numba.int64, numba.int64)
    return numba.njit(signature, nogil=True, fastmath={"contract", "nsz"})(kernel)
