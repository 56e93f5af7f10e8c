"""Origin: what a posterior was fitted on, and the refusal of everything else."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from fishnets.errors import IncompatibleInformationError, NonFiniteError, ShapeError, SupportError, describe_rows
from fishnets.inference.directions import Condition
from fishnets.inference.summaries import Summaries, shortened

__all__ = ["Origin"]


@dataclass(frozen=True)
class Origin:
    """Where the summaries of a fit come from.

    Args:
        width: Columns of a plain array; 0 for :class:`Summaries`, whose origin the other fields describe.
        model: Digest of the model.
        fiducial: The expansion point; None where each set has its own.
        moments: Mean and covariance of the prior the summaries were completed with.
        sizes: Smallest and largest set.
    """

    width: int
    model: str = ""
    fiducial: list[float] | None = None
    moments: list[Any] | None = None
    sizes: tuple[int, int] = (0, 0)

    @staticmethod
    def of(condition: Condition) -> Origin:
        """Describes summaries or a plain array (B, s)."""
        if not isinstance(condition, Summaries):
            return Origin(int(condition.shape[1]))
        point, prior, sizes = condition.information.fiducial, condition.prior, condition.sizes
        return Origin(
            width=0,
            model=condition.model,
            fiducial=point.tolist() if point.ndim == 1 else None,
            moments=[prior.mean.tolist(), prior.covariance.tolist()],
            sizes=(int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0),
        )

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Origin:
        """Rebuilds from :meth:`to_dict`."""
        smallest, largest = fields["sizes"]
        return Origin(**(fields | {"sizes": (smallest, largest)}))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def expect(self, condition: Condition) -> None:
        """Raises unless the posterior may be conditioned on these."""
        other = Origin.of(condition)
        if other.width != self.width:
            raise ShapeError(f"The posterior was fitted on {_kind(self.width)} but was given {_kind(other.width)}.")
        if self.width:
            return
        if other.model != self.model:
            raise IncompatibleInformationError(
                f"The posterior was fitted on summaries of model {shortened(self.model)} but these come from model "
                f"{shortened(other.model)}. Summarise with the same model, or fit another posterior."
            )
        if other.fiducial != self.fiducial:
            raise IncompatibleInformationError(
                f"The posterior was fitted on summaries at the fiducial {self.fiducial} but these are at "
                f"{other.fiducial}. Bring them there with `information.at(point)`, or fit another posterior."
            )
        if other.moments != self.moments:
            raise IncompatibleInformationError(
                f"The posterior was fitted on summaries under a prior with mean and covariance {self.moments} but "
                f"these are under {other.moments}. Make them with the same prior."
            )
        self._expect_sizes(condition)

    def _expect_sizes(self, condition: Condition) -> None:
        assert isinstance(condition, Summaries)
        low, high = self.sizes
        outside = ((condition.sizes < low) | (condition.sizes > high)).nonzero().flatten()
        if len(outside):
            found = sorted({int(n) for n in condition.sizes[outside]})
            fitted = f"{low:,} to {high:,}" if low < high else f"{low:,}"
            raise SupportError(
                f"The posterior was fitted on sets of {fitted} data; got {describe_rows([f'{n:,}' for n in found])} in "
                f"{len(outside)} of {len(condition)} sets: fit on sets of that size."
            )


def expect_finite_rows(array: torch.Tensor) -> None:
    """Raises unless a plain array of summaries is (B, s) and finite."""
    if array.ndim != 2 or array.shape[1] == 0:
        raise ShapeError(f"`summaries` has shape {tuple(array.shape)} but one row per set, (B, s), was expected.")
    bad = (~torch.isfinite(array).all(-1)).nonzero().flatten().tolist()
    if bad:
        raise NonFiniteError(f"`summaries` holds NaN or infinite values in {len(bad)} rows (row {describe_rows(bad)}).")


def _kind(width: int) -> str:
    return f"an array with {width} columns" if width else "`Summaries`"
