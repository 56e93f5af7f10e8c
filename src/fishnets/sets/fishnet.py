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

from fishnets.algebra.gaussian import Gaussian
from fishnets.algebra.information import Information
from fishnets.algebra.packing import packed_size, unpack_symmetric
from fishnets.errors import ConfigError, ShapeError
from fishnets.networks import Gated, NetworkRecipe, TwinNetwork, member_weights
from fishnets.ops.segment_information import segment_information
from fishnets.priors import Prior
from fishnets.ragged import Sets
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
from fishnets.sets.objective import Objective, Standards
from fishnets.sets.recipe import Recipe
from fishnets.sets.sources import Simulator, Source
from fishnets.sets.training import Losses, Schedule

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
            num_features, prior, body, members, seed, shared, factor, tuple(point.tolist()), standardise
        )
        self.fitted, self.num_fits = False, 0
        generator = torch.Generator().manual_seed(seed)
        self.networks = TwinNetwork(body, num_features, len(point), factor, shared, members, generator)
        self.networks.scale_to(100.0)  # until `fit` knows how large sets are
        self._register(prior, point)

    def _register(self, prior: Prior, fiducial: Tensor) -> None:
        """Stores the standardisations and the prior in standardised parameters."""
        scale = prior.covariance.to(torch.float64).diagonal().sqrt()
        precision = torch.linalg.inv(prior.covariance.to(torch.float64) / torch.outer(scale, scale))
        pull = precision @ ((prior.mean.to(torch.float64) - fiducial) / scale)
        self.register_buffer("feature_shift", torch.zeros(self.recipe.num_features, dtype=torch.float64))
        self.register_buffer("feature_scale", torch.ones(self.recipe.num_features, dtype=torch.float64))
        self.register_buffer("fiducial", fiducial.clone())
        self.register_buffer("theta_scale", scale)
        self.register_buffer("prior_precision", 0.5 * (precision + precision.mT))
        self.register_buffer("prior_pull", pull)  # −C⁻¹(θ* − μ), zero when the fiducial is the prior's mean
        weights = torch.full((self.recipe.members,), 1 / self.recipe.members, dtype=torch.float64)
        self.register_buffer("weights", weights)

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
        return sum(p.numel() for p in self.networks.parameters()) // self.recipe.members

    @overload
    def compress(self, sets: Sets, *, chunk: int = ..., members: Literal["pooled"] = ...) -> Information: ...

    @overload
    def compress(self, sets: Sets, *, chunk: int = ..., members: Literal["separate"]) -> tuple[Information, ...]: ...

    @torch.no_grad()
    def compress(
        self, sets: Sets, *, chunk: int = CHUNK, members: Literal["pooled", "separate"] = "pooled"
    ) -> Information | tuple[Information, ...]:
        """Turns each set into its information.

        Rows are evaluated in the precision and on the device of the input and summed in float64, at most ``chunk`` at
        a time, so memory does not grow with the sets.

        Args:
            sets: The sets.
            chunk: Rows evaluated at once.
            members: ``"pooled"`` sums the members' information with their weights, which keeps it additive;
                ``"separate"`` gives one state per member.

        Returns:
            The information of each set, or a tuple with one per member.
        """
        if members not in ("pooled", "separate"):
            raise ConfigError(f'`members` is "{members}" but "pooled" or "separate" was expected.')
        expect_sets(sets, self.recipe.num_features).check_finite()
        width = self.num_params + packed_size(self.num_params)
        shape = (self.recipe.members, len(sets), width)
        total = torch.zeros(shape, dtype=torch.float64, device=sets.device)
        for first, piece in sets.chunks(chunk):
            score, raw_factor = self._evaluate(piece.values)
            sums = segment_information(score, raw_factor, piece.offsets, self.recipe.factor, torch.float64)
            total[:, first : first + len(piece)] += torch.cat(sums, dim=-1)
        if members == "separate":
            return tuple(self._information(part, sets.sizes) for part in total)
        return self._information(torch.tensordot(self.weights.to(sets.device), total, dims=1), sets.sizes)

    def estimate(self, sets: Sets, *, chunk: int = CHUNK) -> Gaussian:
        """The Gaussian posterior of each set under the model's prior."""
        return self.compress(sets, chunk=chunk).posterior(self.prior)

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
        clip: float = 1.0,
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
            clip: Largest gradient norm of a member; how often it acted is in the history.
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
            clip=clip,
            keep_best=keep_best,
            checkpoint=checkpoint,
            device=device,
            progress=progress,
        )
        losses = partial(self._losses, precision, compile)
        return fit(self, data, theta, options, losses, self._prepare, self._weigh_members)

    def save(self, path: str | Path) -> None:
        """Writes the model to one file: safetensors with a JSON header."""
        from fishnets.sets.files import save

        save(self, path)

    def _losses(self, precision: str, compiling: str, source: Source) -> tuple[Losses, Losses | None]:
        """Losses in float32 and, where it was asked for or pays, in bfloat16."""
        rows = source.typical.values[:1].float()
        half = precision == "bfloat16" or (precision == "auto" and self._half_pays(rows))
        compiled = compiling == "on" or (compiling == "auto" and self.fiducial.is_cuda)
        standards = self._standards()
        exact = Objective(self.networks, standards, False, compiled and not half)  # too few steps to pay for compiling
        return exact, Objective(self.networks, standards, True, compiled) if half else None

    def _half_pays(self, rows: Tensor) -> bool:
        return rows.is_cuda and (self.networks.fuses(rows) or self.recipe.network.width >= 128)

    def _weigh_members(self, history: History) -> None:
        if all(math.isfinite(loss) for loss in history.best_loss):
            self.weights.copy_(member_weights(torch.tensor(history.best_loss, dtype=torch.float64)))

    def _standards(self) -> Standards:
        return Standards(
            self.feature_shift,
            self.feature_scale,
            self.fiducial,
            self.theta_scale,
            self.prior_precision,
            self.prior_pull,
        )

    def _evaluate(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (K, n, p) and raw factors (K, n, w) in the dtype and on the device of the rows."""
        state = {name: p.to(device=values.device, dtype=values.dtype) for name, p in self.networks.named_parameters()}
        rows = self._standards().features(values)
        outputs: tuple[Tensor, Tensor] = torch.func.functional_call(self.networks, state, (rows,))
        return outputs

    def _information(self, sums: Tensor, count: Tensor) -> Information:
        """From sums in standardised parameters (B, p + p(p+1)/2) to information about theta."""
        scale = self.theta_scale.to(sums.device)
        score, fisher_packed = sums[:, : self.num_params], sums[:, self.num_params :]
        fisher = unpack_symmetric(fisher_packed) / torch.outer(scale, scale)
        return Information(score / scale, fisher, self.fiducial.to(sums.device), count)

    @torch.no_grad()
    def _prepare(self, source: Source) -> None:
        """Measures the features and scales the heads to the largest set, once, before the first step."""
        measure_features(self, source)
        self.networks.scale_to(float(source.largest_set))
