r"""Summaries: the information of sets, with the prior and the model it was made with.

A posterior is conditioned on the vector

.. math:: \left(\hat\theta,\ \ln\text{-Cholesky of } F + C_p^{-1},\ \ln(1 + n)\right),

never on :math:`\hat\theta` alone. Two sets with one estimate may differ in the *width* of their posteriors, which only
:math:`F` tells; where :math:`F` depends on the parameters it even says something about them that :math:`\hat\theta`
does not; and :math:`n` lets one density serve sets of many sizes, since how far learned information strays from the
exact one depends on it. The prior's precision is inside, so a set without data has a vector as well, and
:math:`\ln(1 + n)` is finite for it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from fishnets.algebra.cholesky import cholesky
from fishnets.algebra.gaussian import Gaussian, MomentPrior
from fishnets.algebra.information import Information
from fishnets.algebra.packing import pack_symmetric
from fishnets.arrays import ArrayLike, as_float
from fishnets.errors import (
    ConfigError,
    FileFormatError,
    FishnetsError,
    IncompatibleInformationError,
    NonFiniteError,
    ShapeError,
    describe_rows,
)
from fishnets.priors import Prior, prior_from_dict, prior_to_dict
from fishnets.ragged import Sets
from fishnets.sets.container import read_container, write_container
from fishnets.sets.fishnet import CHUNK, Fishnet

__all__ = ["Summaries", "load_summaries", "model_digest", "save_summaries", "summarize"]


@dataclass(frozen=True, eq=False)
class Summaries:
    """What a posterior is conditioned on: information, always of a batch of sets, and where it comes from.

    Args:
        information: Information of each set, batch shape (B,); kept in float64.
        prior: Prior whose moments complete the information to a Gaussian.
        model: Digest of the model that made it (:func:`model_digest`), or any name of your own.

    Example:
        >>> from fishnets.priors import Normal
        >>> summaries = Summaries(Information.zero(2, (3,)), Normal([0.0, 0.0], [1.0, 1.0]), "exact")
        >>> summaries.vector.shape
        torch.Size([3, 6])
    """

    information: Information
    prior: MomentPrior
    model: str

    def __post_init__(self) -> None:
        info = self.information
        if len(info.batch_shape) != 1:
            raise ShapeError(
                f"The information has batch shape {tuple(info.batch_shape)} but one state per set, (B,), was expected; "
                "for a single set give a batch of one."
            )
        if info.score.dtype != torch.float64:
            score, fisher, fiducial = (t.to(torch.float64) for t in (info.score, info.fisher, info.fiducial))
            object.__setattr__(self, "information", Information(score, fisher, fiducial, info.count))
        good = torch.isfinite(info.score).all(-1) & torch.isfinite(info.fisher).all(-1).all(-1)
        if not bool(good.all()):
            where = (~good).nonzero().flatten().tolist()
            raise NonFiniteError(
                f"The information of {len(where)} of {len(info)} sets (set {describe_rows(where)}) is NaN or infinite; "
                "look at the data of these sets."
            )

    @property
    def num_params(self) -> int:
        """Number of parameters p."""
        return self.information.num_params

    @property
    def sizes(self) -> Tensor:
        """Number of data in each set, shape (B,)."""
        return self.information.count

    @property
    def device(self) -> torch.device:
        """Where the information is."""
        return self.information.score.device

    @cached_property
    def gaussian(self) -> Gaussian:
        """The Gaussian posterior of each set under the prior's moments."""
        return self.information.posterior(self.prior)

    @cached_property
    def factor(self) -> Tensor:
        r"""Cholesky factor :math:`L` of the posterior precision :math:`F + C_p^{-1}`, shape (B, p, p)."""
        return cholesky(self.gaussian.precision, "precision")

    @property
    def vector(self) -> Tensor:
        """Estimate, packed log-Cholesky factor of the precision and log(1 + n), float64, (B, p + p(p+1)/2 + 1)."""
        diagonal = self.factor.diagonal(dim1=-2, dim2=-1)
        logged = self.factor + torch.diag_embed(diagonal.log() - diagonal)
        counts = self.sizes.to(torch.float64).log1p().unsqueeze(-1)
        return torch.cat([self.gaussian.mean, pack_symmetric(logged), counts], dim=-1)

    def __len__(self) -> int:
        return len(self.information)

    def __getitem__(self, key: int | slice | Tensor) -> Summaries:
        """Some of the sets; a single number gives a batch of one."""
        if isinstance(key, int):
            if not -len(self) <= key < len(self):
                raise IndexError(f"There is no set {key}: there are {len(self)}.")
            key = slice(key, key + 1 or None)
        return Summaries(self.information[key], self.prior, self.model)

    def __add__(self, other: Summaries) -> Summaries:
        """Merges set by set: the summaries of the unions."""
        if not isinstance(other, Summaries):
            return NotImplemented
        if self.model != other.model:
            raise IncompatibleInformationError(
                f"The summaries come from two models, {shortened(self.model)} and {shortened(other.model)}, so they "
                "cannot be merged. Summarise both with one model."
            )
        if not same_moments(self.prior, other.prior):
            raise IncompatibleInformationError(
                "The summaries were made under priors of different moments, so they cannot be merged. Give both one "
                "prior: `Summaries(summaries.information, prior, summaries.model)`."
            )
        return Summaries(self.information + other.information, self.prior, self.model)

    def __radd__(self, other: int) -> Summaries:
        """Lets the built-in ``sum`` start from 0."""
        if isinstance(other, int) and other == 0:
            return self
        return NotImplemented

    def to(self, device: torch.device | str) -> Summaries:
        """Copies the information to a device."""
        return Summaries(self.information.to(device), self.prior, self.model)

    def __repr__(self) -> str:
        total = int(self.sizes.sum())
        return (
            f"Summaries(sets={len(self)}, num_params={self.num_params}, data={total}, model={shortened(self.model)!r})"
        )


def summarize(model: Fishnet, sets: Sets, chunk: int = CHUNK, *, at: Tensor | None = None) -> Summaries:
    """Compresses sets with a model and remembers which model it was.

    Args:
        model: A trained model.
        sets: The sets.
        chunk: Rows evaluated at once.
        at: Expansion points for the local networks of a model with ``refine=True``, shape (p,) or (B, p).

    Returns:
        One summary per set.

    Example:
        >>> import fishnets as fn
        >>> model = fn.Fishnet(num_features=3, prior=fn.priors.Box([0.0], [1.0]), network=fn.networks.MLP(4, 1))
        >>> len(summarize(model, fn.Sets.from_list([torch.zeros(4, 3), torch.zeros(0, 3)])))
        2
    """
    if not isinstance(model, Fishnet):
        raise ConfigError(
            f"`model` is a {type(model).__name__} but a `fishnets.Fishnet` was expected. Summaries of your own go to a "
            "posterior as a plain array: `posterior.fit(theta, array)`."
        )
    return Summaries(model.compress(sets, at=at, chunk=chunk), model.prior, model_digest(model))


def model_digest(model: Fishnet) -> str:
    """Identifies a model by its recipe, weights and standardisations: 64 hexadecimal digits of SHA-256."""
    digest = hashlib.sha256(f"{model.recipe.identity}{model.networks.set_size}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(values.view(torch.uint8).numpy().tobytes() if values.numel() else b"")
    return digest.hexdigest()


def save_summaries(path: str | Path, summaries: Summaries, theta: ArrayLike | None = None) -> None:
    """Writes summaries, with the parameters the sets were made with where these are known.

    Args:
        path: File to write; an existing one is replaced.
        summaries: The summaries.
        theta: True parameters, shape (B, p).
    """
    info = summaries.information
    tensors = {"score": info.score, "fisher": info.fisher, "fiducial": info.fiducial, "count": info.count}
    if theta is not None:
        tensors["theta"] = checked_theta(theta, len(summaries), summaries.num_params)
    prior = prior_to_dict(cast(Prior, summaries.prior))  # only the moments of a class that is not ours are kept
    write_container(path, "summaries", {"model": summaries.model, "prior": prior}, tensors)


def load_summaries(path: str | Path) -> tuple[Summaries, Tensor | None]:
    """Reads summaries and, where the file has them, the parameters of the sets.

    Args:
        path: File written by :func:`save_summaries`.

    Returns:
        The summaries and theta, shape (B, p), or None.
    """
    header, tensors = read_container(path, "summaries")
    try:
        information = Information(*(tensors[name] for name in ("score", "fisher", "fiducial", "count")))
        summaries = Summaries(information, prior_from_dict(header["prior"]), str(header["model"]))
    except (KeyError, TypeError, FishnetsError) as error:
        raise FileFormatError(f"{path} does not hold summaries this release can read: {error}") from error
    return summaries, tensors.get("theta")


def shortened(model: str) -> str:
    """The first twelve characters of a digest, enough to tell models apart."""
    return model[:12]


def same_moments(a: MomentPrior, b: MomentPrior) -> bool:
    """Whether two priors have one mean and covariance."""
    pairs = ((a.mean, b.mean), (a.covariance, b.covariance))
    return all(x.shape == y.shape and torch.allclose(x.double().cpu(), y.double().cpu()) for x, y in pairs)


def checked_theta(theta: ArrayLike, num_sets: int, num_params: int) -> Tensor:
    """One finite row of parameters per set, float64, shape (num_sets, num_params)."""
    values = as_float(theta, "theta").detach().to(torch.float64)
    if values.shape != (num_sets, num_params):
        raise ShapeError(
            f"`theta` has shape {tuple(values.shape)} but one row per set, ({num_sets}, {num_params}), was expected."
        )
    bad = (~torch.isfinite(values)).any(-1).nonzero().flatten().tolist()
    if bad:
        raise NonFiniteError(f"`theta` is NaN or infinite in {len(bad)} rows: {describe_rows(bad)}.")
    return values
