r"""Fishnet: sets in, information out.

A Fishnet holds twin networks :math:`t(d)`, :math:`F(d)` and a prior. The information of a set is the sum of its data's,

.. math:: t = \sum_i t(d_i), \qquad F = \sum_i F(d_i),

taken in float64, whole or in chunks. Networks see standardised data and speak of standardised parameters
:math:`u = (\theta - \theta_*) / s`, with :math:`s` the prior's standard deviations; both standardisations are stored
with the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, overload

import torch
from torch import Tensor, nn

from fishnets.algebra.information import Information
from fishnets.errors import CheckpointError, ConfigError, DataError, FileFormatError, ShapeError
from fishnets.networks import Gated, NetworkRecipe, TwinNetwork, member_weights
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets.compression import Compressor, Precision
from fishnets.sets.estimate import Estimate
from fishnets.sets.fitting import (
    Options,
    expect_choice,
    expect_counts,
    expect_prior,
    expect_sets,
    fit,
    measure_features,
)
from fishnets.sets.history import History
from fishnets.sets.objective import build_losses
from fishnets.sets.pools import Pools, expect_loss_and_spread
from fishnets.sets.recipe import Recipe
from fishnets.sets.scoring import plain_estimate, refined_estimate
from fishnets.sets.sources import Simulator, Source
from fishnets.sets.standards import Standards
from fishnets.sets.stored_centring import StoredCentring, fit_centring
from fishnets.sets.training import Schedule

__all__ = ["Fishnet"]

CHUNK = 2**18


class Fishnet(nn.Module):
    """Learned compression of sets into information.

    Args:
        num_features: Width of a datum.
        prior: Prior of the parameters: :class:`fishnets.priors.Normal`, :class:`fishnets.priors.Box`, or anything with
            ``sample``, ``log_prob``, ``mean`` and ``covariance``.
        network: Recipe of the networks' bodies.
        members: Number of ensemble members, trained in one go.
        seed: Seed of the initial weights and of training.
        shared: One trunk for score and Fisher heads instead of twin networks.
        factor: Fisher matrices ``"full"``, ``"diagonal"`` or of ``"rank-r"`` per datum.
        fiducial: Expansion point, shape (p,); the prior's mean by default.
        standardise: Whether to scale features to zero mean and unit spread, measured when training starts.
        refine: Whether to train local networks beside the first ones, which see the expansion point and let estimates
            be refined; without, this is the paper's method.

    Example:
        >>> import fishnets as fn
        >>> prior = fn.priors.Normal([0.0, 0.0], [1.0, 1.0])
        >>> model = Fishnet(num_features=3, prior=prior, network=fn.networks.Gated(width=8, depth=1))
        >>> sets = fn.Sets.from_list([torch.zeros(4, 3), torch.zeros(0, 3)])
        >>> model.compress(sets)
        Information(sets=(2,), num_params=2, data=4)
    """

    feature_shift: Tensor
    feature_scale: Tensor
    fiducial: Tensor
    theta_scale: Tensor
    prior_precision: Tensor
    prior_pull: Tensor
    weights: Tensor

    def __init__(
        self,
        num_features: int,
        prior: Prior,
        network: NetworkRecipe | None = None,
        members: int = 1,
        seed: int = 0,
        *,
        shared: bool = False,
        factor: str = "full",
        fiducial: Sequence[float] | Tensor | None = None,
        standardise: bool = True,
        refine: bool = False,
    ) -> None:
        super().__init__()
        expect_counts(num_features, members)
        expect_prior(prior)
        point = prior.mean.to(torch.float64) if fiducial is None else torch.as_tensor(fiducial, dtype=torch.float64)
        if point.shape != prior.mean.shape:
            raise ShapeError(f"`fiducial` has shape {tuple(point.shape)} but ({len(prior.mean)},) was expected.")
        body = Gated() if network is None else network
        if isinstance(body, type) or not hasattr(body, "build"):
            raise ConfigError(
                f"`network` is {body!r} but a recipe such as `fishnets.networks.Gated(width=32, depth=2)` was expected."
            )
        self.recipe = Recipe(
            num_features, prior, body, members, seed, shared, factor, tuple(point.tolist()), standardise, refine
        )
        self.fitted, self.num_fits = False, 0
        generator = torch.Generator().manual_seed(seed)
        self.networks = TwinNetwork(body, num_features, len(point), factor, shared, members, generator)
        self.local: TwinNetwork | None = None
        self.centring: StoredCentring | None = None
        if refine:
            width = num_features + len(point)
            self.local = TwinNetwork(body, width, len(point), factor, shared, members, generator)
        for networks in self._trained():
            networks.scale_to(100.0)  # until `fit` knows how large sets are
        for name, units in vars(Standards.make(num_features, prior, point)).items():
            self.register_buffer(name, units)
        self.register_buffer("weights", torch.full((members,), 1 / members, dtype=torch.float64))

    @property
    def prior(self) -> Prior:
        """The prior."""
        return self.recipe.prior

    @property
    def num_params(self) -> int:
        """Number of parameters p."""
        return len(self.recipe.fiducial)

    @property
    def num_weights(self) -> int:
        """Trainable weights of one member."""
        return sum(p.numel() for networks in self._trained() for p in networks.parameters()) // self.recipe.members

    @overload
    def compress(
        self,
        sets: Sets,
        *,
        at: Tensor | None = ...,
        chunk: int = ...,
        precision: Precision = ...,
        members: Literal["pooled"] = ...,
    ) -> Information: ...

    @overload
    def compress(
        self,
        sets: Sets,
        *,
        at: Tensor | None = ...,
        chunk: int = ...,
        precision: Precision = ...,
        members: Literal["separate"],
    ) -> tuple[Information, ...]: ...

    def compress(
        self,
        sets: Sets,
        *,
        at: Tensor | None = None,
        chunk: int = CHUNK,
        precision: Precision = "input",
        members: Literal["pooled", "separate"] = "pooled",
    ) -> Information | tuple[Information, ...]:
        """Turns each set into its information.

        Rows are evaluated in the precision and on the device of the input and summed in float64, at most ``chunk`` at
        a time, so memory does not grow with the sets.

        Args:
            sets: The sets.
            at: Expansion point of all sets, shape (p,), or of each, shape (B, p), for the local networks of a model
                with ``refine=True``; by default the first networks speak, at the model's fiducial.
            chunk: Rows evaluated at once.
            precision: ``"input"``, or ``"bfloat16"`` for the networks' products, which is faster on a GPU.
            members: ``"pooled"`` sums the members' information with their weights, which keeps it additive;
                ``"separate"`` gives one state per member.

        Returns:
            The information of each set, or a tuple with one per member.
        """
        if members not in ("pooled", "separate"):
            raise ConfigError(f'`members` is "{members}" but "pooled" or "separate" was expected.')
        compressor = Compressor(self, chunk, precision)
        return compressor.compress(sets, at) if members == "pooled" else compressor.separate(sets, at)

    def estimate(
        self,
        sets: Sets,
        *,
        simulator: Simulator | None = None,
        centre: bool | None = None,
        loss: float = 0.02,
        spread: Literal["simulated", "observed"] = "simulated",
        pilot: int | None = None,
        passes: int = 20,
        clamp: bool = False,
        generator: torch.Generator | None = None,
        chunk: int = CHUNK,
        precision: Precision = "input",
    ) -> Estimate:
        """The Gaussian posterior of each set under the model's prior.

        With ``refine=False`` this is one pass of the paper's method. With ``refine=True`` local steps follow until they
        settle, and with a simulator, or a centring stored by :meth:`fit_centring`, the score is centred, which makes
        the estimate consistent and its covariance honest at any size of set.

        Args:
            sets: The sets.
            simulator: Draws data around the estimate, at the observed covariates if it has ``like``; without, the sets'
                covariates must follow the simulator's own law, and rows must be independent given the parameters.
            centre: Whether to centre; by default where there is a simulator or a stored centring.
            loss: Share of the information that the simulations' noise may cost: n / ``loss`` data are simulated for the
                mean of the score, not fewer than 20,000, and 100,000 to 1,000,000 for each column of its slope.
            spread: Covariance of the score from ``"simulated"`` data, or from the ``"observed"`` rows, which holds for
                data that the simulator describes badly.
            pilot: Rows of each set from which the expansion point is found, evenly spaced through the set; the whole
                is then passed over once. By default all.
            passes: Most local passes over the data, and most centred steps.
            clamp: Whether to bring estimates outside the prior's support back into it.
            generator: Source of the simulations' randomness, on the sets' device; seeded with 0 by default.
            chunk: Rows evaluated at once.
            precision: ``"input"``, or ``"bfloat16"`` for the networks' products: faster on a GPU, and rounding is
                centred like any other error of the score.

        Returns:
            The estimates, their covariances, and whether they settled.
        """
        expect_sets(sets, self.recipe.num_features)
        expect_loss_and_spread(loss, spread)
        if spread == "observed" and simulator is None:
            raise ConfigError('`spread="observed"` belongs to centring by simulation: give `simulator=...` as well.')
        compressor = Compressor(self, chunk, precision)
        if self.local is None:
            if simulator is not None or centre or pilot is not None:
                raise ConfigError(
                    "`simulator`, `centre` and `pilot` refine an estimate, which takes local networks; make the model "
                    "with `fishnets.Fishnet(..., refine=True)`."
                )
            plain = plain_estimate(compressor, sets)
            return plain.clamped(self.prior) if clamp else plain
        chance = torch.Generator(sets.device).manual_seed(0) if generator is None else generator
        pools = None if simulator is None else Pools(compressor, simulator, loss, spread, chance, chunk)
        if centre and pools is None and self.centring is None:
            raise ConfigError(
                "`centre=True` needs simulations: give `simulator=...`, or store a centring with the model first, "
                "`model.fit_centring(simulator)`."
            )
        centrer = None if centre is False else (self.centring if pools is None else pools)
        return refined_estimate(compressor, sets, centrer, pilot, passes).reported(self.prior, clamp)

    def fit_centring(
        self,
        simulator: Simulator,
        *,
        num_data: int = 20_000_000,
        num_points: int = 1024,
        generator: torch.Generator | None = None,
    ) -> StoredCentring:
        """Measures the local score over the whole prior and stores its mean, slope and covariance with the model.

        Estimates are then centred without a simulator, for sets whose covariates follow the simulator's own law; sets
        with other covariates are refused.

        Args:
            simulator: The simulator.
            num_data: Data simulated, over all points.
            num_points: Parameters drawn from the prior, at which the score is measured.
            generator: Source of randomness, on the model's device; seeded with 0 by default.

        Returns:
            The stored centring; its ``num_simulated`` says how many data at a single point it is worth.
        """
        if self.local is None:
            raise ConfigError("Centring takes local networks; make the model with `Fishnet(..., refine=True)`.")
        chance = torch.Generator(self.fiducial.device).manual_seed(0) if generator is None else generator
        self.centring = fit_centring(Compressor(self, CHUNK, "input"), simulator, num_data, num_points, chance, CHUNK)
        return self.centring

    def fit(
        self,
        data: Simulator | Sets,
        theta: Tensor | None = None,
        *,
        size: int | Sequence[int] = (5, 100),
        steps: int = 5_000,
        batch_data: int | None = None,
        learning_rate: Schedule = 5e-3,
        num_validation: int = 1000,
        validation_fraction: float = 0.1,
        validate_every: int | None = None,
        patience: int | None = None,
        clip: float | None = None,
        keep_best: bool = True,
        precision: Literal["auto", "float32", "bfloat16"] = "auto",
        compile: Literal["auto", "on", "off"] = "auto",  # noqa: A002 the name torch uses
        checkpoint: str | Path | None = None,
        device: torch.device | str | None = None,
        progress: bool | None = None,
    ) -> History:
        """Trains the networks on fresh simulations or on stored sets.

        Args:
            data: A simulator, called as ``simulator(theta, size, generator)``, or stored sets.
            theta: With stored sets, the parameters each was made with, shape (B, p).
            size: With a simulator, the set size or the range (low, high) to train over; each step draws one.
            steps: Number of updates.
            batch_data: Rows in a step, over all its sets; by default 3,200, or 32 of the largest sets where that is
                more: few sets make a poor gradient, however large they are.
            learning_rate: Peak of a cosine schedule with a warm-up, or stairs ``[(steps, rate), ...]``.
            num_validation: With a simulator, number of validation sets.
            validation_fraction: With stored sets, the share held out for validation.
            validate_every: Steps between looks at the validation loss; by default a hundredth of ``steps``, or more
                where looking would take over a tenth of the time.
            patience: Stop after this many looks without improvement of any member. By default never: the best weights
                are kept anyway, and the loss may wander for long before the learning rate falls.
            clip: Largest gradient norm of a member; how often it acted is in the history. By default 1, and 100 with
                ``refine``: the loss of local networks is steeper, by the inverse of their points' distance.
            keep_best: End with each member's best weights on validation data: the newest that are within one standard
                error of the lowest loss. Otherwise with the last.
            precision: ``"bfloat16"`` runs the networks' products in bf16 and everything after them in float32; the last
                fiftieth of the steps, and every look at the validation sets, are float32 throughout, as ``compress``
                is. ``"auto"`` does so on a GPU for networks that have fused kernels or are 128 or more wide.
            compile: Whether to use ``torch.compile``; ``"auto"`` does on a GPU.
            checkpoint: File for an exact resume; written at the end, when interrupted, and at looks at the validation
                sets, at most once a minute.
            device: Where to train: by default where the stored sets, or the model, are.
            progress: Whether to show a progress bar; by default when stderr is a terminal.

        Returns:
            Losses, rates, clipped steps and the reason training stopped.
        """
        expect_choice("precision", precision, ("auto", "float32", "bfloat16"))
        expect_choice("compile", compile, ("auto", "on", "off"))
        options = Options(
            size=size,
            steps=steps,
            batch_data=batch_data,
            learning_rate=learning_rate,
            num_validation=num_validation,
            validation_fraction=validation_fraction,
            validate_every=validate_every,
            patience=patience,
            clip=(1.0 if self.local is None else 100.0) if clip is None else clip,
            keep_best=keep_best,
            checkpoint=checkpoint,
            device=device,
            progress=progress,
        )
        losses = partial(build_losses, self, precision, compile)
        networks = self.networks if self.local is None else nn.ModuleList(self._trained())
        refine = self.local is not None
        stored, self.centring = self.centring, None  # measured on the networks as they were
        try:
            return fit(self, networks, data, theta, options, losses, self._prepare, self._weigh_members, noisy=refine)
        except (ConfigError, DataError, ShapeError, CheckpointError, FileFormatError):  # refused before it began
            self.centring = stored
            raise

    def save(self, path: str | Path) -> None:
        """Writes the model to one file: safetensors with a JSON header."""
        from fishnets.sets.files import save

        save(self, path)

    def _trained(self) -> list[TwinNetwork]:
        return [self.networks] if self.local is None else [self.networks, self.local]

    def _weigh_members(self, history: History) -> None:
        if all(math.isfinite(loss) for loss in history.best_loss):
            self.weights.copy_(member_weights(torch.tensor(history.best_loss, dtype=torch.float64)))

    @property
    def standards(self) -> Standards:
        """What data and parameters are measured in, and the prior in these units."""
        return Standards(**{name: getattr(self, name) for name in Standards.__dataclass_fields__})

    @torch.no_grad()
    def _prepare(self, source: Source) -> None:
        """Measures the features and scales the heads to the largest set, once, before the first step."""
        measure_features(self, source)
        for networks in self._trained():
            networks.scale_to(float(source.largest_set))
