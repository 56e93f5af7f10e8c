r"""Noisy neighbourhoods: a graph that sees each node's parameters through messages of very unequal, unstated precision.

A node has parameters :math:`\theta_v \sim \mathcal N(0, I)`, p = 2, and is an instrument with covariates
:math:`k_v \in [0, 1]^2`. Every directed edge e from u to v carries a covariate :math:`c_e \in [0, 1]` and a measurement
of its target's parameters,

.. math::
    y_e = \theta_v + \epsilon_e, \quad \epsilon_e \sim \mathcal N(0, \Sigma_e), \qquad
    \Sigma_e = R(\varphi_e)\, \mathrm{diag}(s_{1e}^2, s_{2e}^2)\, R(\varphi_e)^\top ,

where the source's quality :math:`k_1` and orientation :math:`k_2` and the edge's :math:`c` decide the noise,

.. math::
    \ln s_{1,2} = 1.3 - 1.5 \sin^4 \pi k_1 + 0.35 \cos 3\pi c \pm 0.65 \sin 2\pi(k_1 + c), \qquad
    \varphi = \pi\,(k_2 + c^2/2) ,

so that s lies between exp(-1.2) = 0.30 and exp(2.3) = 10, and a few good messages dominate. The features are
:math:`k` of the nodes and :math:`(y, c)` of the edges: the precision is a nonlinear function of what a message brings,
and never itself an input.

A message has :math:`F_e = \Sigma_e^{-1}` and, at :math:`\theta_* = 0`, :math:`t_e = F_e y_e`. They add over the
neighbourhood of a node, and all is known:

.. math::
    \hat\theta_v = C_v \sum_{e \to v} t_e, \qquad C_v = \Big( \sum_{e \to v} F_e + I \Big)^{-1} ,

with :math:`\mathrm{tr}\,C_v / p` the least mean squared error of any estimate. Without a prior the Cramér-Rao bound is
:math:`(\sum F_e)^{-1}`, the inverse of ``information().fisher``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fishnets.algebra.gaussian import Gaussian
from fishnets.algebra.information import Information
from fishnets.errors import ConfigError, ShapeError
from fishnets.ops.segment_information import segment_sum
from fishnets.priors import Normal

__all__ = ["Neighbourhood", "Neighbourhoods", "Noise", "RatioWithError"]

Noise = Literal["training", "shifted"]


class RatioWithError(NamedTuple):
    """A ratio and its Monte Carlo error (one standard error)."""

    value: float
    error: float


@dataclass(frozen=True)
class Neighbourhoods:
    """The simulator of graphs; what it returns knows its exact answers.

    Args:
        degree: Least and greatest in-degree; between them, both included, it is uniform.
        noise: Law of the quality of a node and of the covariate of an edge. ``"training"``: uniform; ``"shifted"``: the
            cube of a uniform, on the same support but mostly near zero, where instruments are poor. What a message with
            given covariates is worth is the same under both.

    Example:
        >>> graph = Neighbourhoods(degree=(2, 5))(100, torch.Generator().manual_seed(0))
        >>> graph
        Neighbourhood(num_nodes=100, num_edges=351)
        >>> graph.node_features.shape, graph.edge_features.shape
        (torch.Size([100, 2]), torch.Size([351, 3]))
    """

    degree: tuple[int, int] = (1, 30)
    noise: Noise = "training"

    def __post_init__(self) -> None:
        pair = isinstance(self.degree, tuple) and [type(bound) for bound in self.degree] == [int, int]
        if not pair or not 0 <= self.degree[0] <= self.degree[1]:
            raise ConfigError(
                f"`degree` is {self.degree} but the least and the greatest in-degree were expected, two whole numbers "
                "with 0 <= least <= greatest, such as (1, 30)."
            )
        if self.noise not in ("training", "shifted"):
            raise ConfigError(f'`noise` is "{self.noise}" but "training" or "shifted" was expected.')

    @property
    def prior(self) -> Normal:
        """The law of a node's parameters: both standard normal."""
        return _prior()

    def __call__(
        self, num_nodes: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
    ) -> Neighbourhood:
        """Draws one graph. Sources are uniform among all nodes, so that loops and repeated edges occur.

        Args:
            num_nodes: Number of nodes N, at least one.
            generator: Source of the randomness; its device is that of the result.
            dtype: Precision of parameters and features.

        Returns:
            The graph with its true parameters, its edges in no particular order.
        """
        if not isinstance(num_nodes, int) or num_nodes < 1:
            raise ConfigError(f"`num_nodes` is {num_nodes} but a whole number of at least 1 was expected.")
        device = generator.device if generator is not None else torch.device("cpu")
        theta = torch.randn(num_nodes, 2, generator=generator, dtype=dtype, device=device)
        k = torch.rand(num_nodes, 2, generator=generator, dtype=dtype, device=device)
        edge_index = self._edges(num_nodes, generator, device)
        num_edges = edge_index.shape[1]
        c = torch.rand(num_edges, generator=generator, dtype=dtype, device=device)
        if self.noise == "shifted":
            k, c = torch.stack([k[:, 0] ** 3, k[:, 1]], dim=1), c**3
        source, target = edge_index
        white = torch.randn(num_edges, 2, generator=generator, dtype=dtype, device=device)
        y = theta[target] + _rotated_noise(k[source], c, white)
        return Neighbourhood(theta, k, torch.cat([y, c.unsqueeze(1)], dim=1), edge_index)

    def _edges(self, num_nodes: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Sources and targets, shape (2, E)."""
        least, greatest = self.degree
        degree = torch.randint(least, greatest + 1, (num_nodes,), generator=generator, device=device)
        num_edges = int(degree.sum())
        sorted_target = torch.repeat_interleave(degree, output_size=num_edges)
        target = sorted_target[torch.randperm(num_edges, generator=generator, device=device)]
        source = torch.randint(num_nodes, (num_edges,), generator=generator, device=device)
        return torch.stack([source, target])


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    r"""One graph with its true parameters, and its exact answers in float64.

    Args:
        theta: True parameters of the nodes, shape (N, 2).
        node_features: Covariates :math:`k` of the nodes, shape (N, 2).
        edge_features: Measurement and covariate :math:`(y_1, y_2, c)` of the edges, shape (E, 3).
        edge_index: Sources, then targets, as in PyTorch Geometric, int64, shape (2, E).

    Example:
        >>> graph = Neighbourhoods()(2000, torch.Generator().manual_seed(0))
        >>> graph.information()
        Information(sets=(2000,), num_params=2, data=31494)
        >>> ratio = graph.mse_over_bound(graph.posterior().mean)
        >>> ratio.value, ratio.error
        (1.0, 0.0)
    """

    theta: Tensor
    node_features: Tensor
    edge_features: Tensor
    edge_index: Tensor

    def __post_init__(self) -> None:
        shapes = [tuple(x.shape) for x in (self.theta, self.node_features, self.edge_features, self.edge_index)]
        N, E = (shape[0] if shape else 0 for shape in (shapes[0], shapes[2]))
        if shapes != [(N, 2), (N, 2), (E, 3), (2, E)]:
            raise ShapeError(
                f"`theta`, `node_features`, `edge_features` and `edge_index` have shapes {shapes[0]}, {shapes[1]}, "
                f"{shapes[2]} and {shapes[3]} but (N, 2), (N, 2), (E, 3) and (2, E) were expected."
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes N."""
        return len(self.theta)

    @property
    def num_edges(self) -> int:
        """Number of edges E."""
        return len(self.edge_features)

    def fisher_per_message(self) -> Tensor:
        r"""The exact Fisher matrix :math:`\Sigma_e^{-1}` of each message, shape (E, 2, 2)."""
        k, c = self.node_features[self.edge_index[0]], self.edge_features[:, 2]
        log_s1, log_s2, phi = _noise_law(k.to(torch.float64), c.to(torch.float64))
        weight1, weight2 = torch.exp(-2 * log_s1), torch.exp(-2 * log_s2)
        half_sum, half_difference = 0.5 * (weight1 + weight2), 0.5 * (weight1 - weight2)
        along, across = half_difference * torch.cos(2 * phi), half_difference * torch.sin(2 * phi)
        return torch.stack([half_sum + along, across, across, half_sum - along], dim=-1).reshape(-1, 2, 2)

    def information(self) -> Information:
        """The exact information each node receives, at the origin; its count is the in-degree, its length N."""
        fisher = self.fisher_per_message()
        y, target = self.edge_features[:, :2].to(torch.float64), self.edge_index[1]
        score = (fisher @ y.unsqueeze(-1)).squeeze(-1)
        count = torch.bincount(target, minlength=self.num_nodes)
        # sorted sums are the same from run to run on every device, which atomic ones are not
        rows = torch.cat([score, fisher.flatten(1)], dim=1)[target.argsort(stable=True)]
        total = segment_sum(rows, torch.cat([count.new_zeros(1), count.cumsum(0)]))
        return Information(total[:, :2], total[:, 2:].reshape(-1, 2, 2), total.new_zeros(2), count)

    def posterior(self) -> Gaussian:
        """The exact posterior of each node's parameters; the prior where no message arrives."""
        return self.information().posterior(_prior())

    def bound(self) -> Tensor:
        r"""The least mean squared error per parameter of any estimate, :math:`\mathrm{tr}\,C_v / p`, shape (N,)."""
        return 0.5 * _trace(self.posterior().covariance)

    def mse_over_bound(self, estimate: Tensor) -> RatioWithError:
        r"""Mean squared error of an estimate in units of the least possible, less its own Monte Carlo noise.

        .. math:: 1 + \left\langle \frac{\lVert \tilde\theta_v - \theta_v \rVert^2
            - \lVert \hat\theta_v - \theta_v \rVert^2}{\mathrm{tr}\,C_v} \right\rangle_v

        with :math:`\tilde\theta` the estimate and :math:`\hat\theta` the exact posterior mean, on the same data. It is
        one for the exact estimate; the expectation of any other is above. The error takes nodes as independent, which
        they are given the graph and its covariates. From graph to graph, nodes that share a source vary together: the
        spread is then about a sixth wider for the plain mean of the measurements, and no wider near the exact estimate.

        Args:
            estimate: Estimates of the nodes' parameters, shape (N, 2).

        Returns:
            The ratio with its Monte Carlo error over the nodes; NaN for the error of a single node.

        Example:
            >>> graph = Neighbourhoods()(2000, torch.Generator().manual_seed(0))
            >>> graph.mse_over_bound(torch.zeros(2000, 2)).value > 5
            True
        """
        if estimate.shape != self.theta.shape:
            raise ShapeError(
                f"`estimate` has shape {tuple(estimate.shape)} but the parameters of every node, "
                f"{tuple(self.theta.shape)}, were expected."
            )
        theta, posterior = self.theta.to(torch.float64), self.posterior()
        found = (estimate.detach().to(theta) - theta).square().sum(1)
        least = (posterior.mean - theta).square().sum(1)
        gap = (found - least) / _trace(posterior.covariance)
        spread = float(gap.std()) if len(gap) > 1 else math.nan
        return RatioWithError(1 + float(gap.mean()), spread / math.sqrt(len(gap)))

    def to(self, device: torch.device | str) -> Neighbourhood:
        """Copies the graph to a device."""
        parts = (self.theta, self.node_features, self.edge_features, self.edge_index)
        return Neighbourhood(*(part.to(device) for part in parts))

    def __repr__(self) -> str:
        return f"Neighbourhood(num_nodes={self.num_nodes}, num_edges={self.num_edges})"


def _prior() -> Normal:
    return Normal([0.0, 0.0], [1.0, 1.0])


def _noise_law(k: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r""":math:`\ln s_1`, :math:`\ln s_2` and :math:`\varphi`, each (E,), of covariates of shape (E, 2) and (E,)."""
    quality, orientation = k.unbind(-1)
    level = 1.3 - 1.5 * torch.sin(math.pi * quality) ** 4 + 0.35 * torch.cos(3 * math.pi * c)
    stretch = 0.65 * torch.sin(2 * math.pi * (quality + c))
    return level + stretch, level - stretch, math.pi * (orientation + 0.5 * c.square())


def _rotated_noise(k: Tensor, c: Tensor, white: Tensor) -> Tensor:
    r"""Noise :math:`R(\varphi)\,(s_1 z_1, s_2 z_2)` from standard normal z, shape (E, 2)."""
    log_s1, log_s2, phi = _noise_law(k, c)
    major, minor = log_s1.exp() * white[:, 0], log_s2.exp() * white[:, 1]
    cos, sin = torch.cos(phi), torch.sin(phi)
    return torch.stack([cos * major - sin * minor, sin * major + cos * minor], dim=-1)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
