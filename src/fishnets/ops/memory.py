"""What was found out about a tensor, remembered for as long as it lives and is not changed.

The same index serves every layer and every epoch of a graph network; to sort or to check it takes longer than to use
it, and makes the host wait for a GPU. The last few findings are kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from fishnets.ops.dispatch import transforms_active

__all__ = ["remembered"]

REMEMBERED = 32

Found = TypeVar("Found")


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
    if tensor.is_inference() or transforms_active():  # has no version, or no memory
        return find()
    owner = tensor if tensor._base is None else tensor._base
    view = (tensor.storage_offset(), tensor.stride(), tensor.shape)
    key = (id(owner), owner.data_ptr(), owner._version, view, what)
    known = _MEMORY.get(key)
    if known is None or known[0]() is None:
        known = (weakref.ref(owner, partial(_forget, key)), find())
        while len(_MEMORY) >= REMEMBERED:
            _MEMORY.pop(next(iter(_MEMORY)))
        _MEMORY[key] = known
    found: Found = known[1]
    return found


_MEMORY: dict[Hashable, tuple[weakref.ref[Tensor], Any]] = {}


def _forget(key: Hashable, _: object) -> None:
    _MEMORY.pop(key, None)
