r"""The information a summary holds about the parameters, measured by simulation.

The information inequality (equation 1 and appendix A of the paper) bounds the covariance of any summary by the Fisher
matrix F of the data. Read the other way it says how much of F a summary x has kept:

.. math::
    I = A^\top V^{-1} A \preceq F, \qquad
    A = \frac{\partial\, \mathrm E_\theta[x]}{\partial \theta^\top}, \quad V = \mathrm{Cov}_\theta[x] .

Equality holds for the score, x = t, at its own fiducial. *Sign*: the summary is a fixed function of the data here and
the parameters of the data move, so the score has slope A = +F; the paper's A = -F is the derivative with respect to
the point the score is evaluated at, with the data held. Only :math:`A^\top V^{-1} A` matters, and it is the same.

How A is measured: blocks of sets are drawn twice, at :math:`\theta \pm \delta`, from the same random numbers, with
:math:`\delta_j = \pm h_j` in all parameters at once and random signs for each block, and half the difference of a
block's mean summaries is regressed on :math:`\delta`. Even orders of the expansion cancel in every difference. Where
draws move smoothly with the parameters the noise cancels too; where they do not (Poisson counts, rejection) the two
draws of a block still share most of their random numbers, if in other places, and nothing is ever lost. Every block
tells of all parameters, which differences along one axis at a time do not. The default step is one standard deviation
of a set, :math:`h_j = I_{jj}^{-1/2}`: noise then adds to the error of I no more than V does, and the bias, of order
:math:`h^2`, falls as one over the size of the sets.

What finite samples would add to I is taken out: the inverse of V is shrunk by (N - s - 2) / (N - 1) (Hartlap et al.
2007), and the noise of A, which enters squared, is subtracted. Errors are jackknife ones over the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fishnets.errors import (
    ConfigError,
    DataError,
    NonFiniteError,
    NotPositiveDefiniteError,
    ShapeError,
    describe_rows,
    expect_square,
)
from fishnets.inference.efficiency import Measured
from fishnets.ragged import Sets
from fishnets.sets.sources import Simulator, mixed_seed

__all__ = ["SummaryInformation", "information"]

Summary = Callable[[Sets], Tensor]

BLOCKS = 50
PILOT_BLOCKS = 20
BLOCKS_PER_PARAMETER = 5  # at least, for a regression with room to spare
MAX_DATA = 2**20  # rows simulated at once
PILOT_SETS = 400
PILOT_ROUNDS = 12


@dataclass(frozen=True, eq=False)
class SummaryInformation:
    r"""What a summary of s components tells about p parameters at one point. Errors are one standard error.

    Args:
        slope: :math:`A = \partial \mathrm E[x] / \partial \theta^\top`, shape (s, p).
        slope_error: Its errors.
        covariance: :math:`V`, shape (s, s).
        covariance_error: Its errors.
        information: :math:`A^\top V^{-1} A`, shape (p, p).
        error: Its errors.
        step: Half the distance over which A was measured in each parameter, shape (p,).
        num_sets: Sets V was measured with; A was measured with twice as many.
        exact: Fisher matrix of a whole set, shape (p, p), when it is known.
        efficiency: :math:`(\det I / \det F)^{1/p}`, when F is known; 0 for a summary blind to a direction.
        bounds: For each parameter the ratio of the smallest variance the data allow to the smallest the summary
            allows, :math:`(F^{-1})_{jj} / (I^{-1})_{jj}`, when F is known.
    """

    slope: Tensor
    slope_error: Tensor
    covariance: Tensor
    covariance_error: Tensor
    information: Tensor
    error: Tensor
    step: Tensor
    num_sets: int
    exact: Tensor | None = None
    efficiency: Measured | None = None
    bounds: tuple[Measured, ...] | None = None

    def __str__(self) -> str:
        num_summaries, num_params = self.slope.shape
        lines = [f"information of {num_summaries} summaries about {num_params} parameters, {self.num_sets} sets"]
        head = f"{'':<8}{'A^T V^-1 A':>22}"
        lines.append(head if self.exact is None else f"{head}{'exact':>12}")
        for i in range(num_params):
            for j in range(i, num_params):
                line = f"{f'[{i}, {j}]':<8}{float(self.information[i, j]):12.4g} ± {float(self.error[i, j]):<7.2g}"
                lines.append(line.rstrip() if self.exact is None else f"{line}{float(self.exact[i, j]):12.4g}")
        if self.efficiency is not None and self.bounds is not None:
            lines.append(f"efficiency {self.efficiency}")
            lines += [f"parameter {j}: ratio of bounds {ratio}" for j, ratio in enumerate(self.bounds)]
        return "\n".join(lines)


def information(
    summary: Summary,
    simulator: Simulator,
    theta: Tensor | Sequence[float],
    *,
    size: int,
    num_sets: int = 4000,
    step: Tensor | Sequence[float] | float | None = None,
    exact: Tensor | None = None,
    seed: int = 0,
) -> SummaryInformation:
    r"""Measures the information of any summary of sets.

    Args:
        summary: Sets in, summaries out, shape (B, s): ``lambda sets: model.compress(sets).score``, or
            ``lambda sets: model.estimate(sets).mean``, or the output of any network.
        simulator: Draws one set per row of theta; see :class:`fishnets.sets.sources.Simulator`.
        theta: The point :math:`\theta`, shape (p,). Data are drawn on its device and in its dtype.
        size: Data in a set.
        num_sets: Sets to measure V with, rounded up to whole blocks of the jackknife; A takes twice as many.
        step: Half the distance to measure A over in each parameter, a number or shape (p,); by default one standard
            deviation of a set, found by a pilot run. The result should not change when it is halved.
        exact: Fisher matrix of a whole set, shape (p, p); by default ``size`` times the simulator's
            ``fisher_per_datum``, if it has one.
        seed: Seed of everything drawn.

    Returns:
        Slope, covariance, information, and the efficiency if the exact Fisher matrix is known.

    Example:
        >>> from fishnets.simulators import LinearRegression
        >>> simulator, theta = LinearRegression(), torch.tensor([0.5, -0.5], dtype=torch.float64)
        >>> found = information(
        ...     lambda sets: simulator.information(sets, theta).score, simulator, theta, size=20, num_sets=1000
        ... )
        >>> abs(found.efficiency.value - 1) < 4 * found.efficiency.error
        True
    """
    point = _point(theta)
    num_blocks = max(BLOCKS, BLOCKS_PER_PARAMETER * len(point))
    if size < 1 or num_sets < 2 * num_blocks:
        raise ConfigError(
            f"`size` is {size} and `num_sets` {num_sets} but at least 1 and {2 * num_blocks} (two sets per block of "
            "the jackknife) were expected."
        )
    known = _exact(simulator, point, size) if exact is None else exact.detach().double().cpu()
    if known is not None:
        expect_square("exact", known, len(point))
        if float(torch.linalg.eigvalsh(known)[0]) <= 0:
            raise NotPositiveDefiniteError(f"`exact` is not positive definite: {known.tolist()}.")
    experiment = _Experiment(summary, simulator, point, size)
    pilot_sets = max(PILOT_SETS, num_sets // 8)
    steps = _pilot(experiment, pilot_sets, mixed_seed(seed, 0)) if step is None else _steps(step, point)
    sample = _draw(experiment, steps, num_blocks, math.ceil(num_sets / num_blocks), mixed_seed(seed, 1))
    _check_covariance(sample.x)
    results = _results(sample, known)
    left_out = [_results(sample.without(block), known) for block in range(num_blocks)]
    errors = {name: _jackknife([part[name] for part in left_out]) for name in results}
    measured = {
        name: [Measured(*pair) for pair in zip(results[name].tolist(), errors[name].tolist(), strict=True)]
        for name in ("efficiency", "bounds")
        if name in results
    }
    return SummaryInformation(
        slope=results["slope"],
        slope_error=errors["slope"],
        covariance=results["covariance"],
        covariance_error=errors["covariance"],
        information=results["information"],
        error=errors["information"],
        step=steps.double().cpu(),
        num_sets=len(sample.x),
        exact=known,
        efficiency=measured["efficiency"][0] if known is not None else None,
        bounds=tuple(measured["bounds"]) if known is not None else None,
    )


@dataclass(frozen=True, eq=False)
class _Experiment:
    """Draws sets and summarises them."""

    summary: Summary
    simulator: Simulator
    theta: Tensor
    size: int

    def draw(self, theta: Tensor, seed: int) -> Tensor:
        """Summaries of one set per row of theta, float64 on the CPU, shape (B, s)."""
        parts = []
        per_call = max(1, MAX_DATA // self.size)
        for i, rows in enumerate(theta.split(per_call)):
            generator = torch.Generator(theta.device).manual_seed(mixed_seed(seed, i))
            sizes = torch.full((len(rows),), self.size, dtype=torch.int64, device=theta.device)
            with torch.no_grad():
                parts.append(_checked(self.summary(self.simulator(rows, sizes, generator)), len(rows)))
        return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Summaries x (N, s) at theta, and for each of K blocks delta (K, p) and half the difference of means (K, s)."""

    x: Tensor
    delta: Tensor
    half_difference: Tensor

    def without(self, block: int) -> _Sample:
        size = len(self.x) // len(self.delta)
        parts = ((self.x, size), (self.delta, 1), (self.half_difference, 1))
        return _Sample(*(torch.cat([rows[: block * n], rows[(block + 1) * n :]]) for rows, n in parts))


def _draw(experiment: _Experiment, step: Tensor, num_blocks: int, block_size: int, seed: int) -> _Sample:
    theta = experiment.theta
    generator = torch.Generator().manual_seed(mixed_seed(seed, 0))
    delta = step * (2 * torch.randint(0, 2, (num_blocks, len(theta)), generator=generator) - 1)
    x = experiment.draw(theta.expand(num_blocks * block_size, -1), mixed_seed(seed, 1))
    differences = []
    for i, shift in enumerate(delta.to(theta)):
        try:
            above, below = (
                experiment.draw((theta + sign * shift).expand(block_size, -1), mixed_seed(seed, 2 + i))
                for sign in (1, -1)
            )
        except DataError as error:
            raise DataError(
                f"The simulator refused parameters {shift.abs().tolist()} away from `theta`, where its slope is "
                f"measured: {error} Give a smaller `step` or larger sets."
            ) from error
        differences.append((above - below).mean(0) / 2)
    return _Sample(x, delta, torch.stack(differences))


def _results(sample: _Sample, exact: Tensor | None) -> dict[str, Tensor]:
    """Everything that is measured, by name."""
    number, num_summaries = sample.x.shape
    normal = torch.linalg.inv(sample.delta.mT @ sample.delta)
    slope = sample.half_difference.mT @ sample.delta @ normal
    residual = sample.half_difference - sample.delta @ slope.mT
    noise = residual.mT @ residual / (len(residual) - len(normal))  # covariance of a half difference
    covariance = sample.x.mT.cov().reshape(num_summaries, num_summaries)
    inverse = torch.linalg.inv(covariance) * (number - num_summaries - 2) / (number - 1)
    found = slope.mT @ inverse @ slope - torch.trace(inverse @ noise) * normal
    results = {"slope": slope, "covariance": covariance, "information": (found + found.mT) / 2}
    return results if exact is None else results | _comparison(results["information"], exact)


def _comparison(found: Tensor, exact: Tensor) -> dict[str, Tensor]:
    """Efficiency (1,) and ratios of bounds (p,); zero where a direction holds no information."""
    if float(torch.linalg.eigvalsh(found)[0]) <= 0:
        return {"efficiency": found.new_zeros(1), "bounds": found.new_zeros(len(found))}
    ratio = (torch.logdet(found) - torch.logdet(exact)) / len(found)
    bounds = torch.linalg.inv(exact).diagonal() / torch.linalg.inv(found).diagonal()
    return {"efficiency": ratio.exp().reshape(1), "bounds": bounds}


def _jackknife(parts: list[Tensor]) -> Tensor:
    """Standard error from the results with one block left out each."""
    values = torch.stack(parts)
    return ((len(parts) - 1) * values.var(0, correction=0)).sqrt()


def _pilot(experiment: _Experiment, num_sets: int, seed: int) -> Tensor:
    """Steps of one standard deviation of a set, by iteration from a hundredth of the parameters' size."""
    step = 0.01 * experiment.theta.double().cpu().abs().clamp(min=1.0)
    num_blocks = max(PILOT_BLOCKS, BLOCKS_PER_PARAMETER * len(step))
    for i in range(PILOT_ROUNDS):
        sample = _draw(experiment, step, num_blocks, math.ceil(num_sets / num_blocks), mixed_seed(seed, i))
        _check_covariance(sample.x)
        diagonal = _results(sample, None)["information"].diagonal()
        # below the noise nothing is known but that the step is too small
        wanted = torch.where(diagonal * step.square() > 0.05, diagonal.clamp(min=1e-300).rsqrt(), 4 * step)
        if bool(((wanted / step).log().abs() < math.log(1.5)).all()):
            return wanted
        step = wanted.clamp(0.02 * step, 4 * step)
    raise DataError(
        f"No step was found at which the summary moves with every parameter; the last one tried was {step.tolist()}. "
        "The summary may not depend on one of them; otherwise give `step`."
    )


def _exact(simulator: Simulator, theta: Tensor, size: int) -> Tensor | None:
    """The Fisher matrix of a set where the simulator knows that of a datum, ``fisher_per_datum(theta)``."""
    per_datum: Callable[..., Any] | None = getattr(simulator, "fisher_per_datum", None)
    if per_datum is None:
        return None
    fisher = per_datum(theta)
    return size * torch.as_tensor(fisher).detach().double().cpu()


def _point(theta: Tensor | Sequence[float]) -> Tensor:
    point = theta if isinstance(theta, Tensor) else torch.as_tensor(theta, dtype=torch.float64)
    if point.ndim != 1 or len(point) == 0 or not point.is_floating_point():
        raise ShapeError(
            f"`theta` has shape {tuple(point.shape)} and dtype {point.dtype} but one point, (p,), of floating-point "
            "numbers was expected."
        )
    return point


def _steps(step: Tensor | Sequence[float] | float, theta: Tensor) -> Tensor:
    steps = torch.as_tensor(step, dtype=torch.float64).cpu()
    if steps.ndim > 1 or (steps.ndim == 1 and len(steps) != len(theta)):
        raise ShapeError(f"`step` has shape {tuple(steps.shape)} but a number or ({len(theta)},) was expected.")
    if not bool((steps > 0).all()):
        raise ConfigError(f"`step` is {steps.tolist()} but positive numbers were expected.")
    return steps.expand(len(theta)).clone()


def _checked(x: Tensor, number: int) -> Tensor:
    if not isinstance(x, Tensor) or x.ndim != 2 or len(x) != number or x.shape[1] == 0:
        shape = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"type {type(x).__name__}"
        raise ShapeError(f"The summary has {shape} but one row per set, ({number}, s), was expected.")
    bad = (~torch.isfinite(x)).any(0)
    if bool(bad.any()):
        components = describe_rows(bad.nonzero().flatten().tolist())
        raise NonFiniteError(f"The summary holds NaN or infinite values in components {components}.")
    return x.detach().double().cpu()


def _check_covariance(x: Tensor) -> None:
    """Refuses a covariance that cannot be inverted, naming a component that makes it so."""
    number, num_summaries = x.shape
    if number < 4 * (num_summaries + 2):
        raise ConfigError(
            f"The covariance of {num_summaries} summaries is measured with {number} sets but at least "
            f"{4 * (num_summaries + 2)} are needed. Raise `num_sets`, or use fewer summaries."
        )
    constant = (x.std(0) <= 1e-12 * x.abs().amax(0)).nonzero().flatten().tolist()
    if constant:
        raise NotPositiveDefiniteError(
            f"The covariance of the summary is singular: components {describe_rows(constant)} never change. Drop them."
        )
    values, vectors = torch.linalg.eigh(x.mT.corrcoef().reshape(num_summaries, num_summaries))
    if float(values[0]) < 1e-10:
        component = int(vectors[:, 0].abs().argmax())
        raise NotPositiveDefiniteError(
            f"The covariance of the summary is singular: component {component} is a linear combination of the others. "
            "Drop it."
        )
