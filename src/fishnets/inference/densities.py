"""Conditional densities p(x | c): a neural spline flow and a mixture density network, sampled from given noise.

Both start as (nearly) a standard normal whatever the condition, so that a fit in good coordinates begins at the
Gaussian answer and learns what differs from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from fishnets.algebra.packing import packed_size, triangle_from_packed
from fishnets.errors import MissingExtraError

__all__ = ["Density", "Mixture", "SplineFlow"]

WIDEST = 7.0  # log of the largest and smallest width of a Gaussian: a component that loses all data stays finite


class Density(Protocol):
    """What a posterior asks of a density estimator."""

    noise_width: int

    def log_prob(self, x: Tensor, condition: Tensor) -> Tensor: ...

    def push(self, noise: Tensor, condition: Tensor) -> Tensor: ...


class SplineFlow(nn.Module):
    """Neural spline flow (Durkan et al. 2019) by zuko, behind one affine autoregressive layer.

    The splines act on [-5, 5] and leave the rest alone; the affine layer in front of them sets place and width for each
    condition, so what a set size or a summary stretches still falls inside.

    Args:
        features: Number of variables d.
        context: Width of the condition.
        transforms: Number of spline layers.
        bins: Bins of a spline.
        hidden: Widths of the hidden layers.
    """

    def __init__(self, features: int, context: int, transforms: int, bins: int, hidden: Sequence[int]) -> None:
        super().__init__()
        try:
            from zuko.flows import NSF, Flow
            from zuko.flows.autoregressive import MaskedAutoregressiveTransform
        except ImportError as error:
            raise MissingExtraError("zuko", "posterior", "Density estimation") from error
        options: dict[str, Any] = {"hidden_features": list(hidden), "activation": nn.SiLU}
        splines = NSF(features, context, transforms=transforms, bins=bins, **options)
        affine = MaskedAutoregressiveTransform(features, context, **options)
        self.noise_width = features
        self.flow = Flow([affine, *splines.transform.transforms], splines.base)
        for layer in self.flow.transform.transforms:  # zero outputs are the identity
            nn.init.zeros_(layer.hyper[-1].weight)
            nn.init.zeros_(layer.hyper[-1].bias)

    def log_prob(self, x: Tensor, condition: Tensor) -> Tensor:
        """Log-densities (N,) of variables (N, d) given conditions (N, c)."""
        return cast(Tensor, self.flow(condition).log_prob(x))

    def push(self, noise: Tensor, condition: Tensor) -> Tensor:
        """Turns standard normal noise (N, d) into one draw per row of the condition, shape (N, d)."""
        return cast(Tensor, self.flow(condition).transform.inv(noise))


class Mixture(nn.Module):
    r"""Mixture density network: :math:`\sum_k \pi_k \mathcal N(m_k, (A_k A_k^\top)^{-1})`, all functions of c.

    Written here rather than taken from zuko because the factors :math:`A_k` of the precisions need no solve in training
    and a NaN reaches the loss, where it is reported.

    Args:
        features: Number of variables d.
        context: Width of the condition.
        components: Number of Gaussians.
        hidden: Widths of the hidden layers.
    """

    def __init__(self, features: int, context: int, components: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.features, self.components, self.noise_width = features, components, features + 1
        widths = [context, *hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.SiLU()]
        head = nn.Linear(widths[-1], components * (1 + features + packed_size(features)))
        nn.init.zeros_(head.weight)
        nn.init.normal_(head.bias, std=0.3)  # equal components would stay equal
        self.network = nn.Sequential(*layers, head)

    def log_prob(self, x: Tensor, condition: Tensor) -> Tensor:
        """Log-densities (N,) of variables (N, d) given conditions (N, c)."""
        log_weight, mean, factor = self._parts(condition)
        white = (factor.mT @ (x.unsqueeze(-2) - mean).unsqueeze(-1)).squeeze(-1)  # Aᵀ(x − m), (N, K, d)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        each = log_det - 0.5 * white.square().sum(-1) - 0.5 * self.features * math.log(2 * math.pi)
        return torch.logsumexp(log_weight + each, dim=-1)

    def push(self, noise: Tensor, condition: Tensor) -> Tensor:
        """Turns standard normal noise (N, d + 1) into one draw per row of the condition, shape (N, d)."""
        log_weight, mean, factor = self._parts(condition)
        level = torch.special.ndtr(noise[:, :1])  # the extra noise picks the component
        chosen = (log_weight.exp().cumsum(-1) < level).sum(-1).clamp(max=self.components - 1)  # (N,)
        rows = torch.arange(len(condition), device=condition.device)
        step: Tensor = torch.linalg.solve_triangular(factor[rows, chosen].mT, noise[:, 1:].unsqueeze(-1), upper=True)
        return mean[rows, chosen] + step.squeeze(-1)

    def _parts(self, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (N, K), means (N, K, d) and precision factors (N, K, d, d)."""
        raw = self.network(condition).unflatten(-1, (self.components, -1))
        log_weight = torch.log_softmax(raw[..., 0], dim=-1)
        triangle = triangle_from_packed(raw[..., 1 + self.features :])
        diagonal = triangle.diagonal(dim1=-2, dim2=-1)
        positive = (WIDEST * torch.tanh(diagonal / WIDEST)).exp()
        return log_weight, raw[..., 1 : 1 + self.features], triangle + torch.diag_embed(positive - diagonal)

