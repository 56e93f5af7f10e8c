r"""Exact likelihood of the gamma population: the one latent variable of a datum is integrated numerically.

A member with decay time :math:`\gamma \sim \mathrm{Gamma}(\mu/\Theta, 1/\Theta)`, measured at time :math:`\tau`, gives
a count :math:`s \sim \mathrm{Poisson}(A e^{-\tau/\gamma})`. Over a grid in :math:`\ln\gamma`,

.. math::
    p(s \mid \tau, \theta) = \int \mathrm{Pois}(s \mid A e^{-\tau/\gamma})\, p(\gamma \mid \theta)\, d\gamma
    \approx \sum_j P_j(s, \tau)\, w_j(\theta).

The matrix :math:`P` does not depend on :math:`\theta` and the weights :math:`w` not on the data, so many parameters
cost one matrix product. In :math:`\ln\gamma` the integrand is smooth, no narrower than :math:`e/(2\sqrt A)`, and
vanishes at the upper end, so equal steps of :math:`0.45/\sqrt A` are exact to rounding. Decay times below the grid
enter through one more node, which carries their exact mass and moments to first order in :math:`\gamma/\Theta`.

The score of a datum is the mean of :math:`\nabla_\theta \ln p(\gamma \mid \theta)` over its latent posterior. Censoring
(counts below a threshold are never seen) divides the likelihood by the acceptance :math:`P_{\rm acc}(\theta)`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fishnets.errors import SupportError

__all__ = ["GammaQuadrature"]

LOWEST, HIGHEST = 1e-4, 100.0  # decay times on the grid
TIME_NODES = 64
PANEL = 2**24  # entries of a panel of the Poisson matrix held at once


class GammaQuadrature:
    """Nodes in the latent decay time, and what is computed with them; float64 throughout.

    Args:
        amplitude: Mean count at time zero, A.
        time_max: Measurement times are uniform on (0, ``time_max``).
        threshold: Smallest count that is kept, or None for uncensored data.
        device: Where to compute.
    """

    def __init__(self, amplitude: float, time_max: float, threshold: int | None, device: torch.device) -> None:
        self.amplitude, self.time_max, self.threshold = amplitude, time_max, threshold
        step = 0.45 / math.sqrt(amplitude)
        count = math.ceil(math.log(HIGHEST / LOWEST) / step)
        self.log_gamma = math.log(LOWEST) + step * torch.arange(count + 1, dtype=torch.float64, device=device)
        self.step = step
        # the first node stands for everything below the grid
        self.gamma = torch.cat([self.log_gamma.new_full((1,), LOWEST), self.log_gamma.exp()])  # (J,)
        self.accepted = None if threshold is None else self._accepted_share(threshold)  # (J,)

    def weights(self, theta: Tensor) -> Tensor:
        """Mass of the population at each node, shape (J, K), for parameters (K, 2)."""
        a, scale = theta[:, 0] / theta[:, 1], theta[:, 1]
        log_density = torch.outer(self.log_gamma, a) - torch.outer(self.gamma[1:], 1 / scale)
        log_density = log_density - a * scale.log() - torch.lgamma(a)
        mass = self.step * log_density.exp()  # γ p(γ) d ln γ
        mass[0] *= 0.5  # the trapezoid's end; the upper one vanishes
        ratio = LOWEST / scale
        below = torch.exp(a * ratio.log() - torch.lgamma(a + 1)) * (1 - ratio * a / (a + 1))
        weights = torch.cat([below.unsqueeze(0), mass])
        missing = (weights.sum(0) - 1).abs()
        if not bool((missing < 1e-6).all()):
            worst = theta[int(missing.argmax())].tolist()
            raise SupportError(
                f"At theta = {worst} decay times reach beyond the grid of {LOWEST:g} to {HIGHEST:g} on which they are "
                "integrated; give positive parameters near those of the prior, (0.5 to 10, 0.1 to 1.5)."
            )
        return weights

    def weight_gradients(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (J, K) and their derivatives with respect to mu and Theta, each (J, K)."""
        mass = self.weights(theta)
        mean, scale = theta[:, 0], theta[:, 1]
        a = mean / scale
        # moments of ln γ and γ below the grid, where the density goes as γ^(a-1)
        low_log, low_gamma = math.log(LOWEST) - 1 / a, LOWEST * a / (a + 1)
        log_gamma = torch.cat([low_log.unsqueeze(0), self.log_gamma.unsqueeze(1).expand(-1, len(theta))])
        gamma = torch.cat([low_gamma.unsqueeze(0), self.gamma[1:].unsqueeze(1).expand(-1, len(theta))])
        by_shape = log_gamma - scale.log() - torch.digamma(a)
        by_mean = by_shape / scale
        by_scale = (gamma / scale - a - a * by_shape) / scale
        return mass, mass * by_mean, mass * by_scale

    def poisson(self, time: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Poisson probabilities of data (n,) at each node, (n, J), over their largest, and the log of that, (n,)."""
        log_rate = math.log(self.amplitude) - torch.outer(time, 1 / self.gamma)
        log_p = torch.outer(count, self.gamma.new_ones(1)) * log_rate - log_rate.exp()
        peak = log_p.max(1).values
        return (log_p - peak.unsqueeze(1)).exp(), peak - torch.lgamma(count + 1)

    def log_likelihood(self, time: Tensor, count: Tensor, theta: Tensor) -> Tensor:
        """Sum of the log-likelihood over data (n,) at each of the parameters (K, 2), shape (K,)."""
        weights = self.weights(theta)
        total = -len(time) * self.log_acceptance(theta)
        for rows in torch.arange(len(time), device=time.device).split(max(1, PANEL // len(self.gamma))):
            matrix, peak = self.poisson(time[rows], count[rows])
            smallest = torch.finfo(torch.float64).tiny  # far from the data the sum may vanish
            total = total + (matrix @ weights).clamp(min=smallest).log().sum(0) + peak.sum()
        return total

    def sites(self, time: Tensor, count: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Log-likelihood (n,) and score (n, 2) of every datum at one point (2,)."""
        mass = torch.cat(self.weight_gradients(theta.unsqueeze(0)), dim=1)  # (J, 3)
        parts, peaks = [], []
        for rows in torch.arange(len(time), device=time.device).split(max(1, PANEL // len(self.gamma))):
            matrix, peak = self.poisson(time[rows], count[rows])
            parts.append(matrix @ mass)
            peaks.append(peak)
        sums = torch.cat(parts) if parts else time.new_zeros((0, 3))
        log_likelihood = sums[:, 0].log() + (torch.cat(peaks) if peaks else time.new_zeros(0))
        score = sums[:, 1:] / sums[:, :1]
        if self.accepted is not None:
            rate = self.accepted @ mass  # (3,)
            log_likelihood, score = log_likelihood - rate[0].log(), score - rate[1:] / rate[0]
        return log_likelihood, score

    def log_acceptance(self, theta: Tensor) -> Tensor:
        """Log-probability that a member is kept, shape (K,), for parameters (K, 2); zero without a threshold."""
        if self.accepted is None:
            return theta.new_zeros(len(theta), dtype=torch.float64)
        return (self.accepted @ self.weights(theta)).log()

    def fisher(self, theta: Tensor) -> Tensor:
        """Expected Fisher matrix of one (kept) datum, shape (K, 2, 2), for parameters (K, 2)."""
        mass = torch.cat(self.weight_gradients(theta), dim=1)  # (J, 3K)
        highest = math.ceil(self.amplitude + 8 * math.sqrt(self.amplitude))
        count = torch.arange(self.threshold or 0, highest + 1, dtype=torch.float64, device=theta.device)
        # nodes crowd towards τ = 0, where short-lived members still count
        nodes, node_weights = _unit_nodes(TIME_NODES, theta)
        total = theta.new_zeros((len(theta), 6))  # normalisation, first moments, second moments of (1, ∂μ, ∂Θ)
        for node, weight in zip(nodes.tolist(), node_weights.tolist(), strict=True):
            matrix, peak = self.poisson(torch.full_like(count, self.time_max * node * node), count)
            p, by_mean, by_scale = ((matrix @ mass) * peak.exp().unsqueeze(1)).chunk(3, dim=1)  # (S, K) each
            safe = p.clamp(min=1e-300)
            products = (p, by_mean, by_scale, by_mean**2 / safe, by_mean * by_scale / safe, by_scale**2 / safe)
            total += 2 * node * weight * torch.stack([x.sum(0) for x in products], dim=1)
        mean = total[:, 1:3] / total[:, :1]  # zero without a threshold
        second = total[:, 3:] / total[:, :1]
        a, b = mean.unbind(1)
        entries = torch.stack([second[:, 0] - a * a, second[:, 1] - a * b, second[:, 2] - b * b], dim=1)
        return entries[:, [0, 1, 1, 2]].reshape(-1, 2, 2)

    def _accepted_share(self, threshold: int) -> Tensor:
        r"""Share of measurement times that give a kept count, :math:`(\gamma/T)\int_0^{T/\gamma} P(s \ge s_0)\,dx`."""
        reach = math.log(self.amplitude) + 6  # beyond it the mean count is below 1/400
        nodes, weights = _unit_nodes(256, self.gamma)
        span = (self.time_max / self.gamma).clamp(max=reach)  # (J,), of x = τ/γ
        rate = self.amplitude * torch.exp(-torch.outer(span, nodes))
        kept: Tensor = torch.special.gammainc(torch.full_like(rate, float(threshold)), rate)
        return (self.gamma / self.time_max) * span * (kept @ weights)


def _unit_nodes(number: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(number)
    return torch.tensor(0.5 * (nodes + 1)).to(like), torch.tensor(0.5 * weights).to(like)
