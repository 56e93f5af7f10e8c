"""Posteriors as files: recipe, prior, origin and weights, in one safetensors file with a JSON header. Never pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.arrays import available_device
from fishnets.errors import ConfigError, DataError, FileFormatError, FishnetsError
from fishnets.inference.origin import Origin
from fishnets.inference.posterior import Posterior
from fishnets.inference.summaries import same_moments
from fishnets.priors import Moments, Prior, prior_from_dict, prior_to_dict
from fishnets.sets.container import read_container, write_container

__all__ = ["load_posterior", "save_posterior"]

RECIPE = ("kind", "direction", "hidden", "components", "transforms", "bins", "seed")


def save_posterior(posterior: Posterior, path: str | Path) -> None:
    """Writes a fitted posterior; an existing file is replaced in one step.

    Args:
        posterior: The posterior.
        path: File to write.
    """
    if posterior.origin is None:
        raise DataError("The posterior has not been fitted, so there is nothing to save.")
    header = {
        "recipe": {name: getattr(posterior, name) for name in RECIPE},
        "prior": prior_to_dict(posterior.prior),
        "origin": posterior.origin.to_dict(),
    }
    write_container(path, "posterior", header, dict(posterior.state_dict()))


def load_posterior(path: str | Path, prior: Prior | None = None, device: torch.device | str = "cpu") -> Posterior:
    """Reads a posterior written by :meth:`Posterior.save`; its log-densities are bit-equal to the saved one's.

    Args:
        path: File to read.
        prior: The prior, where it is of your own class, which a file does not hold.
        device: Where to put the posterior.

    Returns:
        The posterior.
    """
    header, tensors = read_container(path, "posterior")
    try:
        stored = prior_from_dict(header["prior"])
    except (KeyError, TypeError, FishnetsError) as error:
        raise FileFormatError(f"{path} does not describe a posterior this release can build: {error}") from error
    if prior is None and isinstance(stored, Moments):
        raise DataError(
            f"The file keeps only the moments of the prior `{stored.source}`. Give the prior itself: "
            "`load_posterior(path, prior=...)`."
        )
    if prior is not None and not same_moments(prior, stored):
        raise ConfigError(f"The given prior {prior!r} has other moments than the one the posterior was fitted with.")
    try:
        posterior = _rebuilt(header, tensors, prior or stored)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileFormatError(f"{path} does not describe a posterior this release can build: {error}") from error
    return posterior.to(available_device(device))


def _rebuilt(header: dict[str, Any], tensors: dict[str, Tensor], prior: Prior) -> Posterior:
    posterior, origin = Posterior(prior, **header["recipe"]), Origin.from_dict(header["origin"])
    view = posterior.new_view(origin)
    own = {name.removeprefix("view."): tensor for name, tensor in tensors.items() if name.startswith("view.")}
    view.load_state_dict(own)  # it knows the widths of the density
    posterior.origin, posterior.view, posterior.density = origin, view, posterior.new_density(view)
    posterior.load_state_dict(tensors)
    return posterior
