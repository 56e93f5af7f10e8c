r"""Dropout that does not wait for its random numbers on a CPU.

A feature is kept with probability :math:`1 - q` and divided by it. PyTorch draws one number after the other for that,
which takes longer than a layer's products; here one draw of 64 bits serves four features. The share :math:`q` is
rounded to a multiple of :math:`2^{-16}`, and features are divided by what is then kept, so their mean is exact.
PyTorch's own dropout is used on other devices, where it is fast, and in compiled code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fishnets.errors import ConfigError
from fishnets.ops.dispatch import transforms_active

__all__ = ["Dropout"]

LEVELS = 2**16


class Dropout(nn.Module):
    """Drops a share of the features in training.

    Args:
        share: Probability with which a feature is dropped, in [0, 1).

    Example:
        >>> _ = torch.manual_seed(0)
        >>> sorted(set(Dropout(0.5)(torch.ones(100)).tolist()))
        [0.0, 2.0]
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise ConfigError(f"`share` is {share} but a number in [0, 1) was expected.")
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same shape; in evaluation mode, the same ones."""
        if not self.training or self.share == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling() or transforms_active():
            return functional.dropout(x, self.share)
        dropped = min(round(self.share * LEVELS), LEVELS - 1)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
        levels = draws.view(torch.int16)[: x.numel()].view(x.shape)  # from -LEVELS / 2 to LEVELS / 2 - 1
        kept = (levels >= dropped - LEVELS // 2).to(x.dtype)
        return x * kept.mul_(LEVELS / (LEVELS - dropped))

    def extra_repr(self) -> str:
        """Its settings, for printing."""
        return f"share={self.share}"
