r"""Posterior: a learned conditional density over parameters, given summaries of sets.

Trained on pairs of parameters and summaries, in one of two directions:

* ``"posterior"`` learns :math:`p(\theta \mid s)` itself; sampling is one pass. The prior is the law the parameters of
  the pairs were drawn from.
* ``"likelihood"`` learns :math:`p(s \mid \theta)` and multiplies it by the prior; sampling is by adaptive importance
  sampling. The parameters of the pairs may be drawn from any law that covers the prior. It needs summaries that have a
  density: where F is a function of the estimate, as for one parameter and one sufficient statistic, they have none, and
  what is learned is too narrow.

Use ``"posterior"`` unless the parameters of the pairs were drawn from another law than the prior.

One fit serves sets of all sizes it has seen (it is *amortised* over n), since each set is described in its own units:
see :mod:`fishnets.inference.coordinates` and :mod:`fishnets.inference.directions`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn

from fishnets.arrays import ArrayLike, as_float, available_device
from fishnets.errors import (
    ConfigError,
    DataError,
    NonFiniteError,
    ShapeError,
    SupportError,
    describe_rows,
)
from fishnets.inference.coordinates import Coordinates
from fishnets.inference.densities import Density, Mixture, SplineFlow
from fishnets.inference.directions import Condition, Direction, GivenSummary, GivenTheta
from fishnets.inference.fitting import Pairs, fit_density
from fishnets.inference.origin import Origin, expect_finite_rows
from fishnets.inference.resampling import resampled
from fishnets.inference.summaries import Summaries, checked_theta
from fishnets.priors import Box, Moments, Normal, Prior
from fishnets.sets.history import History
from fishnets.sets.training import Settings

__all__ = ["Posterior"]

CHUNK = 2**17  # rows (a set and a sample) evaluated together
REDRAWS = 100  # of samples outside the support of a prior that is no box


class Posterior(nn.Module):
    """A learned posterior of parameters given summaries.

    Args:
        prior: Prior of the parameters.
        kind: ``"nsf"``, a neural spline flow, or ``"gmm"``, a mixture density network.
        direction: ``"posterior"`` learns p(theta | summary), ``"likelihood"`` p(summary | theta).
        hidden: Widths of the hidden layers.
        components: Gaussians of a mixture density network.
        transforms: Layers of a spline flow.
        bins: Bins of its splines.
        seed: Seed of the initial weights and of training.

    Example:
        >>> import fishnets as fn
        >>> simulator, generator = fn.simulators.LinearRegression(), torch.Generator().manual_seed(0)
        >>> theta = simulator.prior.sample(500, generator)
        >>> sets = simulator(theta, torch.randint(5, 50, (500,), generator=generator), generator)
        >>> summaries = fn.inference.Summaries(simulator.information(sets), simulator.prior, "exact")
        >>> posterior = fn.inference.Posterior(simulator.prior, kind="gmm", hidden=(16,))
        >>> history = posterior.fit(theta, summaries, steps=20)
        >>> posterior.sample(summaries[:3], 10, generator).shape
        torch.Size([3, 10, 2])
    """

    anchor: Tensor

    def __init__(
        self,
        prior: Prior,
        kind: Literal["nsf", "gmm"] = "nsf",
        direction: Literal["posterior", "likelihood"] = "posterior",
        hidden: Sequence[int] = (64, 64, 64),
        components: int = 8,
        transforms: int = 3,
        bins: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if kind not in ("nsf", "gmm"):
            raise ConfigError(f'`kind` is {kind!r} but "nsf" or "gmm" was expected.')
        if direction not in ("posterior", "likelihood"):
            raise ConfigError(f'`direction` is {direction!r} but "posterior" or "likelihood" was expected.')
        if not hidden or min(*hidden, components, transforms) < 1 or bins < 2:
            raise ConfigError(
                f"`hidden` is {tuple(hidden)}, `components` {components}, `transforms` {transforms} and `bins` {bins}; "
                "at least one layer, and numbers of at least 1 (2 bins), were expected."
            )
        if isinstance(prior, Moments):
            raise DataError(
                f"Of the prior `{prior.source}` only the moments are known, but a posterior needs its density. Give "
                "the prior itself."
            )
        self.prior, self.kind, self.direction, self.hidden = prior, kind, direction, tuple(hidden)
        self.components, self.transforms, self.bins, self.seed = components, transforms, bins, seed
        self.coordinates = Coordinates.of(prior)
        self.register_buffer("anchor", torch.zeros(0), persistent=False)  # has a device before there are weights
        self.origin: Origin | None = None
        self.view: Direction | None = None
        self.density: nn.Module | None = None

    @property
    def num_params(self) -> int:
        """Number of parameters p."""
        return len(self.prior.mean)

    @property
    def fitted(self) -> bool:
        """Whether :meth:`fit` has been called."""
        return self.origin is not None

    @property
    def device(self) -> torch.device:
        """Where the density is evaluated."""
        return self.anchor.device

    def fit(
        self,
        theta: ArrayLike,
        summaries: Summaries | ArrayLike,
        *,
        steps: int = 4_000,
        batch_size: int = 512,
        learning_rate: float = 1e-3,
        validation_fraction: float = 0.1,
        validate_every: int | None = None,
        patience: int | None = None,
        clip: float = 5.0,
        device: torch.device | str | None = None,
        progress: bool | None = None,
    ) -> History:
        """Learns from pairs of parameters and summaries; every call starts anew.

        Args:
            theta: Parameters the sets were made with, drawn from the prior, shape (B, p).
            summaries: Their summaries, of one size or of many; or summaries of your own, an array of shape (B, s).
            steps: Number of updates.
            batch_size: Pairs in a step.
            learning_rate: Peak of a cosine schedule with a warm-up.
            validation_fraction: Share of the pairs held out; the newest weights within one standard error of the
                lowest loss on them are kept.
            validate_every: Steps between looks at them; by default a fiftieth of ``steps``.
            patience: Stop after this many looks without improvement; by default never.
            clip: Largest gradient norm.
            device: Where to train and, later, evaluate; by default where the summaries are.
            progress: Whether to show a progress bar; by default when stderr is a terminal.

        Returns:
            The history, with mean negative log-densities in nats as losses.
        """
        condition = self._condition(summaries)
        where = condition.device if device is None else available_device(device)
        condition = condition.to(where)
        self.to(where)
        theta = self._inside(checked_theta(theta, len(condition), self.num_params)).to(where)
        likelihood = self.direction == "likelihood"
        if likelihood and isinstance(condition, Summaries) and not bool((condition.sizes > 0).all()):
            raise SupportError(
                "The summary of a set without data is the same for every theta, so its likelihood is no density. Leave "
                'out empty sets, or use `direction="posterior"`.'
            )
        settings = Settings(
            steps=steps,
            learning_rate=learning_rate,
            validate_every=max(1, steps // 50) if validate_every is None else validate_every,
            patience=patience,
            clip=clip,
            keep_best=True,
            fast_steps=0,
            seed=self.seed + 1,
        )
        origin = Origin.of(condition)
        view = self.new_view(origin).to(where)
        view.measure(theta, condition)
        density = self.new_density(view).to(where)
        pairs = self._pairs(view, theta.unsqueeze(1), condition)
        shown = sys.stderr.isatty() if progress is None else progress
        history = fit_density(cast(Density, density), pairs, settings, batch_size, validation_fraction, shown)
        self.origin, self.view, self.density = origin, view, density
        return history

    @torch.no_grad()
    def sample(
        self,
        summaries: Summaries | ArrayLike,
        num_samples: int,
        generator: torch.Generator | None = None,
        chunk: int = CHUNK,
    ) -> Tensor:
        """Draws from the posterior of each set.

        In the direction ``"likelihood"`` samples are resampled proposals, so some repeat.

        Args:
            summaries: B summaries.
            num_samples: Samples S of each.
            generator: Source of the randomness.
            chunk: Rows evaluated at once; the result does not depend on it.

        Returns:
            Parameters inside the prior's support, float64, shape (B, S, p).
        """
        condition = self._checked(summaries)
        if num_samples < 1 or chunk < 1:
            raise ConfigError(f"`num_samples` is {num_samples} and `chunk` {chunk}; both must be at least 1.")
        if len(condition) == 0:
            return torch.zeros(0, num_samples, self.num_params, dtype=torch.float64, device=self.device)
        if self.direction == "likelihood":

            def log_density(theta: Tensor, given: Condition) -> Tensor:
                return self._log_density(theta, given, chunk)

            return resampled(log_density, self.prior, self.coordinates, condition, num_samples, generator)
        samples = self._pushed(condition, num_samples, generator, chunk)
        if not isinstance(self.prior, Box | Normal):
            samples = self._redrawn(samples, condition, generator, chunk)
        return samples

    @torch.no_grad()
    def log_prob(self, theta: Tensor, summaries: Summaries | ArrayLike, chunk: int = CHUNK) -> Tensor:
        """Log-density of parameters given summaries.

        In the direction ``"posterior"`` it is normalised over theta (with a prior that is neither a box nor normal, up
        to the mass learned outside its support). In the direction ``"likelihood"`` it is the
        log-likelihood plus the log-prior: for each set the log-posterior up to a constant, its log-evidence.

        Args:
            theta: Parameters inside the prior's support: (B, p), one for each of B summaries; (B, S, p), several
                for each; or (S, p) for a single summary.
            summaries: B summaries.
            chunk: Rows evaluated at once.

        Returns:
            Log-densities, float64, shape (B,), (B, S) or (S,).
        """
        condition = self._checked(summaries)
        points, shape = self._arranged(theta, len(condition))
        result = self._log_density(self._inside(points), condition, chunk)
        bad = ~torch.isfinite(result)
        if bool(bad.any()):
            where = bad.any(-1).nonzero().flatten().tolist()
            raise NonFiniteError(
                f"{int(bad.sum())} of {bad.numel()} log-densities are NaN or infinite (set {describe_rows(where)}). "
                "Theta or summaries are too far from what the posterior was fitted on."
            )
        return result.reshape(shape)

    def save(self, path: str | Path) -> None:
        """Writes the posterior to one file: safetensors with a JSON header."""
        from fishnets.inference.files import save_posterior

        save_posterior(self, path)

    def _fitted(self) -> tuple[Origin, Direction, Density]:
        if self.origin is None or self.view is None or self.density is None:
            raise DataError("The posterior has not been fitted; call `posterior.fit(theta, summaries)` first.")
        return self.origin, self.view, cast(Density, self.density)

    def _condition(self, summaries: Summaries | ArrayLike) -> Condition:
        if isinstance(summaries, Summaries):
            if summaries.num_params != self.num_params:
                raise ShapeError(
                    f"The summaries are of {summaries.num_params} parameters but the prior has {self.num_params}."
                )
            return summaries
        array = as_float(summaries, "summaries").to(torch.float64)
        expect_finite_rows(array)
        return array

    def _checked(self, summaries: Summaries | ArrayLike) -> Condition:
        origin = self._fitted()[0]
        condition = self._condition(summaries)
        origin.expect(condition)
        return condition.to(self.device)

    def _inside(self, theta: Tensor) -> Tensor:
        """Theta, refused where it is outside the support of the prior."""
        outside = ~torch.isfinite(self.prior.log_prob(theta))
        if bool(outside.any()):
            rows = outside.nonzero()[:, 0].unique().tolist()
            raise SupportError(
                f"{int(outside.sum())} of {outside.numel()} parameters in `theta` lie outside the support of the prior "
                f"{self.prior!r} (row {describe_rows(rows)}), where there is no posterior."
            )
        return theta

    def _arranged(self, theta: Tensor, num_sets: int) -> tuple[Tensor, torch.Size]:
        """Theta as (B, S, p), and the shape of the answer."""
        theta = torch.as_tensor(theta).detach().to(device=self.device, dtype=torch.float64)
        sizes = tuple(theta.shape)
        if theta.ndim == 2 and sizes[1] == self.num_params and num_sets == 1:
            return theta.unsqueeze(0), theta.shape[:-1]
        if theta.ndim not in (2, 3) or sizes[0] != num_sets or sizes[-1] != self.num_params:
            raise ShapeError(
                f"`theta` has shape {sizes} but ({num_sets}, {self.num_params}) or ({num_sets}, S, {self.num_params}) "
                "was expected."
            )
        return (theta.unsqueeze(1) if theta.ndim == 2 else theta), theta.shape[:-1]

    def new_view(self, origin: Origin) -> Direction:
        """What is modelled given what, not yet measured."""
        return (GivenSummary if self.direction == "posterior" else GivenTheta)(self.coordinates, origin.width)

    def new_density(self, view: Direction) -> nn.Module:
        """The untrained density."""
        with torch.random.fork_rng(devices=[]):  # zuko and torch.nn draw initial weights from the global generator
            torch.default_generator.manual_seed(self.seed)
            if self.kind == "gmm":
                return Mixture(view.variables, view.conditions, self.components, self.hidden)
            return SplineFlow(view.variables, view.conditions, self.transforms, self.bins, self.hidden)

    @staticmethod
    def _pairs(view: Direction, theta: Tensor, condition: Condition) -> Pairs:
        variables, conditions, log_det = view.pairs(theta, condition)
        flat = (variables.flatten(0, 1).float(), conditions.flatten(0, 1).float(), log_det.flatten())
        return Pairs(*flat)

    def _log_density(self, theta: Tensor, condition: Condition, chunk: int) -> Tensor:
        """Log-densities (B, S), the prior included where a likelihood was learned."""
        _, view, density = self._fitted()
        num_samples = max(1, theta.shape[1])
        block = max(1, chunk // num_samples)
        parts = [
            -self._pairs(view, theta[i : i + block], condition[i : i + block]).losses(density)
            for i in range(0, len(theta), block)
        ]
        found = torch.cat([*parts, theta.new_zeros(0)]).view(theta.shape[:2])
        return found if self.direction == "posterior" else found + self.prior.log_prob(theta)

    def _pushed(self, condition: Condition, num_samples: int, generator: torch.Generator | None, chunk: int) -> Tensor:
        """Samples (B, S, p) of a density over theta."""
        _, view, density = self._fitted()
        assert isinstance(view, GivenSummary)
        given = view.condition(condition).float()  # (B, c)
        where = self.device if generator is None else generator.device
        shape = (len(condition), num_samples, density.noise_width)
        noise = torch.randn(shape, generator=generator, device=where).to(self.device)
        block = max(1, chunk // num_samples)
        parts = []
        for i in range(0, len(condition), block):
            rows = given[i : i + block].repeat_interleave(num_samples, dim=0)
            drawn = density.push(noise[i : i + block].flatten(0, 1), rows).to(torch.float64)
            parts.append(view.theta(drawn.view(-1, num_samples, self.num_params), condition[i : i + block]))
        samples = torch.cat(parts)
        if not bool(torch.isfinite(samples).all()):
            bad = (~torch.isfinite(samples)).any(-1).any(-1).nonzero().flatten().tolist()
            raise NonFiniteError(f"Samples are NaN or infinite in {len(bad)} sets (set {describe_rows(bad)}).")
        return samples

    def _redrawn(self, samples: Tensor, condition: Condition, generator: torch.Generator | None, chunk: int) -> Tensor:
        """Draws those again that fell outside the support of a prior of unknown shape."""
        for _ in range(REDRAWS):
            outside = ~torch.isfinite(self.prior.log_prob(samples))  # (B, S)
            rows = outside.any(-1).nonzero().flatten()
            if len(rows) == 0:
                return samples
            fresh = self._pushed(condition[rows], samples.shape[1], generator, chunk)
            samples[rows] = torch.where(outside[rows].unsqueeze(-1), fresh, samples[rows])
        raise SupportError(
            f"After {REDRAWS} rounds, samples of {len(rows)} of {len(samples)} sets (set "
            f"{describe_rows(rows.tolist())}) still fall outside the support of {self.prior!r}. Fit longer, or on "
            "more pairs."
        )

    def __repr__(self) -> str:  # zuko's own draws from the global generator
        how = f"kind={self.kind!r}, direction={self.direction!r}"
        return f"Posterior({how}, prior={self.prior!r}, fitted={self.fitted})"
