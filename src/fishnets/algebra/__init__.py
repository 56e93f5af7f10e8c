"""The additive information algebra: pure functions on tensors, and the two states they act on."""

from fishnets.algebra.cholesky import (
    cholesky,
    factor_from_raw,
    factor_rank,
    factor_width,
    fisher_packed_from_raw,
    inverse_softplus,
    log_determinant,
    solve,
)
from fishnets.algebra.gaussian import Gaussian, MomentPrior, gaussian_loss, gaussian_loss_packed
from fishnets.algebra.information import Information, estimate
from fishnets.algebra.packing import pack_symmetric, packed_size, triangle_from_packed, unpack_symmetric

__all__ = [
    "Gaussian",
    "Information",
    "MomentPrior",
    "cholesky",
    "estimate",
    "factor_from_raw",
    "factor_rank",
    "factor_width",
    "fisher_packed_from_raw",
    "gaussian_loss",
    "gaussian_loss_packed",
    "inverse_softplus",
    "log_determinant",
    "pack_symmetric",
    "packed_size",
    "solve",
    "triangle_from_packed",
    "unpack_symmetric",
]
