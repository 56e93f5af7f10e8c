"""What the tests of the networks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["generator", "member", "num_weights", "rows"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=dtype)


def num_weights(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def member(stacked: nn.Module, single: nn.Module, k: int) -> nn.Module:
    """Gives ``single``, built for one member, the weights of member k of ``stacked``."""
    single.load_state_dict({name: value[k : k + 1] for name, value in stacked.state_dict().items()})
    return single
