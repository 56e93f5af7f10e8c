"""Compression: rows through the networks in chunks, sums in float64, information out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from fishnets.algebra.information import Information
from fishnets.algebra.packing import packed_size, unpack_symmetric
from fishnets.errors import ConfigError, DataError, ShapeError
from fishnets.networks import TwinNetwork
from fishnets.ops.segment_information import segment_information
from fishnets.priors import Prior
from fishnets.ragged import Sets
from fishnets.sets.fitting import expect_choice, expect_sets
from fishnets.sets.objective import local_rows
from fishnets.sets.recipe import Recipe
from fishnets.sets.standards import Standards

__all__ = ["Compressor", "Precision"]

Precision = Literal["input", "bfloat16"]


class Model(Protocol):
    """What compression asks of a model."""

    recipe: Recipe
    networks: TwinNetwork
    local: TwinNetwork | None
    weights: Tensor

    @property
    def standards(self) -> Standards: ...


@dataclass(frozen=True, eq=False)
class Compressor:
    """A model's networks and how to evaluate them.

    Args:
        model: The model.
        chunk: Rows evaluated at once.
        precision: ``"input"``, that of the rows, or ``"bfloat16"`` for the networks' products.
    """

    model: Model
    chunk: int
    precision: Precision

    def __post_init__(self) -> None:
        expect_choice("precision", self.precision, ("input", "bfloat16"))

    @property
    def prior(self) -> Prior:
        """The model's prior."""
        return self.model.recipe.prior

    @property
    def theta_scale(self) -> Tensor:
        """What parameters are measured in, shape (p,)."""
        return self.model.standards.theta_scale

    @property
    def num_features(self) -> int:
        """Width of a datum."""
        return self.model.recipe.num_features

    def compress(self, sets: Sets, at: Tensor | None = None) -> Information:
        """The information of each set, members pooled, at points (p,) or (B, p) or at the model's fiducial."""
        total, points = self._summed(sets, at)
        pooled = torch.tensordot(self.model.weights.to(sets.device), total, dims=1)
        return self._information(pooled, sets.sizes, points)

    def separate(self, sets: Sets, at: Tensor | None = None) -> tuple[Information, ...]:
        """The same, one state for each member."""
        total, points = self._summed(sets, at)
        return tuple(self._information(part, sets.sizes, points) for part in total)

    @torch.no_grad()
    def row_scores(self, sets: Sets, at: Tensor) -> Tensor:
        """Scores of the single rows at their sets' points (B, p), members pooled, shape (n, p), float64."""
        score, _ = self._evaluated(sets, self._points(at, sets))
        pooled: Tensor = torch.tensordot(self.model.weights.to(score), score, dims=1)
        return pooled.to(torch.float64) / self.theta_scale.to(sets.device)

    @torch.no_grad()
    def _summed(self, sets: Sets, at: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Sums over sets, float64, shape (K, B, p + p(p+1)/2), and the points they were taken at."""
        recipe = self.model.recipe
        expect_sets(sets, recipe.num_features).check_finite()
        points = None if at is None else self._points(at, sets)
        width = len(recipe.fiducial) + packed_size(len(recipe.fiducial))
        total = torch.zeros((recipe.members, len(sets), width), dtype=torch.float64, device=sets.device)
        for first, piece in sets.chunks(self.chunk):
            here = None if points is None else points[first : first + len(piece)]
            raw = torch.cat(self._evaluated(piece, here), dim=-1).to(torch.float64)
            sums = segment_information(raw, len(recipe.fiducial), piece.offsets, recipe.factor)
            total[:, first : first + len(piece)] += torch.cat(sums, dim=-1)
        return total, points

    def _evaluated(self, sets: Sets, points: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scores (K, n, p) and raw factors (K, n, w) in the dtype and on the device of the rows.

        They are those of the first networks, or of the local ones at the sets' points (B, p).
        """
        standards, networks = self.model.standards, self.model.networks
        rows = standards.features(sets.values)
        if points is not None:
            assert self.model.local is not None
            shift, scale = standards.fiducial.to(points), standards.theta_scale.to(points)
            networks, rows = self.model.local, local_rows(rows, (points - shift) / scale, sets)
        state = {name: p.to(rows) for name, p in networks.named_parameters()}
        half = self.precision == "bfloat16"
        outputs: tuple[Tensor, Tensor] = torch.func.functional_call(networks, state, (rows, half))
        return outputs

    def _points(self, at: Tensor, sets: Sets) -> Tensor:
        """Expansion points, one for each set, shape (B, p), float64."""
        if self.model.local is None:
            raise ConfigError(
                "`at` asks for information at a point of your own, which takes local networks; make the model with "
                "`fishnets.Fishnet(..., refine=True)`."
            )
        points = torch.as_tensor(at, dtype=torch.float64, device=sets.device)
        expected = (len(sets), len(self.theta_scale))
        if points.shape not in ((expected[1],), expected):
            raise ShapeError(f"`at` has shape {tuple(points.shape)} but ({expected[1]},) or {expected} was expected.")
        if not bool(torch.isfinite(points).all()):
            raise DataError("`at` holds NaN or infinite values.")
        return points.expand(expected)

    def _information(self, sums: Tensor, count: Tensor, points: Tensor | None) -> Information:
        """From sums in standardised parameters (B, p + p(p+1)/2) to information about theta."""
        scale = self.theta_scale.to(sums.device)
        score, fisher_packed = sums[:, : len(scale)], sums[:, len(scale) :]
        fisher = unpack_symmetric(fisher_packed) / torch.outer(scale, scale)
        fiducial = self.model.standards.fiducial.to(sums.device) if points is None else points.clone()
        return Information(score / scale, fisher, fiducial, count)
