"""Runs a kernel of the CPU on threads, and makes the memory that it fills."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["empty_like", "run_ranges"]

ROWS_PER_RANGE = 4096  # fewer are done before a thread has woken
RANGES_PER_THREAD = 12  # one that starts late, because threads of PyTorch are still awake, takes fewer


def empty_like(source: Tensor) -> Tensor:
    """As PyTorch's, in memory of NumPy, which asks for huge pages: the first touch then costs a fifth."""
    strides = torch.empty_like(source, device="meta").stride()
    return torch.from_numpy(np.empty(source.numel(), source.numpy().dtype)).as_strided(source.shape, strides)


def run_ranges(kernel: Callable[..., Any], num_batches: int, bounds: Tensor, tensors: Sequence[Tensor]) -> list[Any]:
    """Runs a kernel on ranges of chunks with about equally many rows, which threads take one after the other.

    What it returns for each range is returned in order.

    The threads are Python's, since kernels let go of the interpreter; Numba's own pool ends the process when two
    threads use it at once. A thread that has not started when all ranges are taken is not waited for.
    """
    arrays, num_positions = [tensor.numpy() for tensor in (bounds, *tensors)], int(bounds[-1])
    most = max(1, num_batches * num_positions // ROWS_PER_RANGE)
    num_threads = min(torch.get_num_threads(), most)
    num_ranges = min(RANGES_PER_THREAD * num_threads, most)
    cuts = np.searchsorted(arrays[0], np.linspace(0, num_positions, num_ranges + 1)).tolist()
    cuts[0], cuts[-1] = 0, len(bounds) - 1  # empty groups at the ends included
    ranges, found = iter(list(enumerate(pairwise(cuts)))), [None] * (len(cuts) - 1)

    def work() -> None:
        for n, (first, last) in ranges:
            try:
                found[n] = kernel(*arrays, first, last)
            except SystemError as error:
                if isinstance(error.__cause__, KeyboardInterrupt):  # the user's, inside of a kernel
                    raise KeyboardInterrupt from error
                raise

    helpers = [_pool(os.getpid()).submit(work) for _ in range(num_threads - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    return found


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Threads of a process; one that was forked starts its own."""
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="fishnets")
