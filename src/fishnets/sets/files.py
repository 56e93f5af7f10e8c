"""Models as files: the recipe, the standardisations and the weights, in one safetensors file with a JSON header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fishnets.arrays import available_device
from fishnets.errors import ConfigError, FileFormatError, FishnetsError
from fishnets.priors import Prior, prior_from_dict
from fishnets.sets.container import read_container, write_container
from fishnets.sets.fishnet import Fishnet
from fishnets.sets.recipe import Recipe
from fishnets.sets.stored_centring import StoredCentring

__all__ = ["describe", "load", "save"]


def save(model: Fishnet, path: str | Path) -> None:
    """Writes a model; an existing file is replaced in one step.

    Args:
        model: The model, trained or not.
        path: File to write, by custom ending in ``.fishnet``.
    """
    progress = {"fitted": model.fitted, "num_fits": model.num_fits, "set_size": model.networks.set_size}
    header = {"recipe": model.recipe.to_dict(), **progress}
    tensors = dict(model.state_dict())
    if model.centring is not None:
        tensors |= {f"centring.{name}": tensor for name, tensor in model.centring.tensors().items()}
    write_container(path, "model", header, tensors)


def load(path: str | Path, prior: Prior | None = None, device: torch.device | str = "cpu") -> Fishnet:
    """Reads a model written by :meth:`fishnets.Fishnet.save`; its outputs are bit-equal to the saved model's.

    Args:
        path: File to read. Pickles, changed, truncated or newer files are refused.
        prior: The prior, where the model was made with one of your own class, which a file does not hold.
        device: Where to put the model.

    Returns:
        The model.
    """
    header, tensors = read_container(path, "model")
    try:
        stored = prior_from_dict(header["recipe"]["prior"])
    except (KeyError, TypeError, FishnetsError) as error:
        raise FileFormatError(f"{path} does not describe a model this release can build: {error}") from error
    if prior is not None:
        _expect_moments(prior, stored)
    try:
        recipe = Recipe.from_dict(header["recipe"], prior)
        fields = {name: getattr(recipe, name) for name in recipe.__dataclass_fields__}
        model = Fishnet(**fields)
        stored_centring = {name: tensors.pop(name) for name in list(tensors) if name.startswith("centring.")}
        model.load_state_dict(tensors)
        if stored_centring:
            fields = {name.removeprefix("centring."): tensor for name, tensor in stored_centring.items()}
            model.centring = StoredCentring(**fields)
        model.fitted, model.num_fits = bool(header["fitted"]), int(header["num_fits"])
        for networks in model._trained():
            networks.set_size = float(header["set_size"])
    except (KeyError, TypeError, RuntimeError, FishnetsError) as error:
        raise FileFormatError(f"{path} does not describe a model this release can build: {error}") from error
    where = available_device(device)
    if model.centring is not None:
        model.centring = model.centring.to(where)
    return model.to(where)


def _expect_moments(given: Prior, stored: Prior) -> None:
    same = given.mean.shape == stored.mean.shape and all(
        torch.allclose(a.to(torch.float64).cpu(), b.to(torch.float64))
        for a, b in ((given.mean, stored.mean), (given.covariance, stored.covariance))
    )
    if not same:
        raise ConfigError(
            f"The given prior has mean {given.mean.tolist()} and covariance {given.covariance.tolist()} but the model "
            f"was trained with {stored.mean.tolist()} and {stored.covariance.tolist()}. For another prior, use "
            "`model.compress(sets).posterior(prior)`."
        )


def describe(path: str | Path) -> dict[str, Any]:
    """Reads what a file says of itself, as plain values."""
    header, tensors = read_container(path, None)
    if header["kind"] != "model":  # posteriors, summaries, checkpoints
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        return {name: value for name, value in header.items() if name != "history"} | {"tensors": shapes}
    networks = [name for name in tensors if name.startswith(("networks.", "local."))]
    members = header["recipe"]["members"]
    return {
        **header["recipe"],
        "fitted": header["fitted"],
        "num_weights": sum(tensors[name].numel() for name in networks) // members,
        "member_weights": tensors["weights"].tolist(),
        "format_version": header["format_version"],
    }
