"""What was found out about a tensor, remembered for as long as it lives and is not changed.

The same index serves every layer and every epoch of a graph network; to sort or to check it takes longer than to use
it, and makes the host wait for a GPU. The last few findings are kept.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from fishnets.ops.dispatch import transforms_active

__all__ = ["keeping", "remembered", "unremembered"]

REMEMBERED = 32

Found = TypeVar("Found")
P = ParamSpec("P")


def remembered(tensor: Tensor, what: Hashable, find: Callable[[], Found]) -> Found:
    """What ``find`` says about a tensor: of those that share memory, the same view at the same version is asked once.

    Args:
        tensor: What it is about.
        what: Names the question, with everything else that the answer depends on.
        find: Answers it.

    Example:
        >>> import torch
        >>> index = torch.tensor([2, 0])
        >>> remembered(index, "largest", lambda: int(index.max()))
        2
        >>> remembered(index, "largest", lambda: 1 / 0)
        2
    """
    if tensor.is_inference() or transforms_active() or getattr(_THREAD, "forgets", False):  # no version, or no memory
        return find()
    owner = tensor if tensor._base is None else tensor._base
    view = (tensor.storage_offset(), tensor.stride(), tensor.shape)
    key = (id(owner), owner.data_ptr(), owner._version, view, what)
    known = _MEMORY.pop(key, None)  # and put back: the longest unasked goes first
    if known is None or known[0]() is None:
        known = (weakref.ref(owner, partial(_forget, key)), find())
        while len(_MEMORY) >= REMEMBERED:
            _MEMORY.pop(next(iter(list(_MEMORY)), None), None)
    _MEMORY[key] = known
    found: Found = known[1]
    if _KEPT:
        _KEPT[-1].append(found)
    return found


@contextmanager
def keeping() -> Iterator[list[Any]]:
    """Collects what is remembered inside, from any thread: a CUDA graph reads it as long as it is replayed.

    Example:
        >>> import torch
        >>> with keeping() as kept:
        ...     _ = remembered(torch.tensor([2, 0]), "sum", lambda: 2)
        >>> kept
        [2]
    """
    kept: list[Any] = []
    _KEPT.append(kept)
    try:
        yield kept
    finally:
        _KEPT[:] = [one for one in _KEPT if one is not kept]


def unremembered(function: Callable[P, Found]) -> Callable[P, Found]:
    """The same function, in which nothing is remembered.

    Compiled code writes new numbers into tensors that it has used before, and their version stays as it was.

    Example:
        >>> import torch
        >>> index = torch.tensor([1])
        >>> ask = unremembered(lambda: remembered(index, "smallest", lambda: next(answers)))
        >>> answers = iter([1, 2])
        >>> ask(), ask()
        (1, 2)
    """

    @wraps(function)
    def forgetful(*args: P.args, **kwargs: P.kwargs) -> Found:
        before = getattr(_THREAD, "forgets", False)
        _THREAD.forgets = True
        try:
            return function(*args, **kwargs)
        finally:
            _THREAD.forgets = before

    return forgetful


_MEMORY: dict[Hashable, tuple[weakref.ref[Tensor], Any]] = {}
_THREAD = threading.local()
_KEPT: list[list[Any]] = []


def _forget(key: Hashable, _: object, memory: dict[Hashable, Any] = _MEMORY) -> None:
    memory.pop(key, None)
