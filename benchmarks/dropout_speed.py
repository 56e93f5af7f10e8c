"""What dropout costs on a CPU, forward and back: PyTorch's, and ours, which draws four features at a time.

Sizes are those of a layer on 32 molecules, on the proteins of yeast and on a citation graph. Run with
``python benchmarks/dropout_speed.py``; ``OMP_NUM_THREADS`` sets the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from costs import Makers, Way, record_speedups
from torch import Tensor, nn

from fishnets.graphs.dropout import Dropout

SIZES = ((816, 256), (5_409, 64), (17_716, 128))
SHARES = (0.1, 0.5)
WAYS: dict[str, Callable[[float], nn.Module]] = {"pytorch": nn.Dropout, "ours": Dropout}


def way(kind: str, share: float, size: tuple[int, int]) -> Way:
    """Dropout of one kind, in training."""
    x = torch.randn(size, requires_grad=True)
    leaves: tuple[Tensor, ...] = (x,)
    return Way(partial(WAYS[kind](share), x), leaves, torch.ones(size))


def cases() -> Iterator[tuple[str, Makers]]:
    """Sizes and shares, by name."""
    for size in SIZES:
        for share in SHARES:
            makers: Makers = {kind: partial(way, kind, share, size) for kind in WAYS}
            yield f"{size[0]}x{size[1]}/{share:g}", makers


if __name__ == "__main__":
    record_speedups("dropout-speed", cases(), {"sizes": SIZES, "shares": SHARES}, __doc__)
