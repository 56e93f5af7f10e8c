"""Everything that determines an untrained Fishnet, in a form that a file can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fishnets.networks import NetworkRecipe, network_from_dict, network_to_dict
from fishnets.priors import Prior, prior_from_dict, prior_to_dict

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """Everything that determines an untrained Fishnet; saved as JSON."""

    num_features: int
    prior: Prior
    network: NetworkRecipe
    members: int
    seed: int
    shared: bool
    factor: str
    fiducial: tuple[float, ...]
    standardise: bool
    refine: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {
            "prior": prior_to_dict(self.prior),
            "network": network_to_dict(self.network),
            "fiducial": list(self.fiducial),
        }

    @property
    def identity(self) -> str:
        """The recipe in words that are the same in every process, whatever the class of the prior."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return f"Recipe({fields | {'prior': prior_to_dict(self.prior)}})"

    @staticmethod
    def from_dict(fields: dict[str, Any], prior: Prior | None = None) -> Recipe:
        """Rebuilds a recipe from :meth:`to_dict`; a given prior takes the place of the stored one."""
        rebuilt = {
            "prior": prior if prior is not None else prior_from_dict(fields["prior"]),
            "network": network_from_dict(fields["network"]),
            "fiducial": tuple(fields["fiducial"]),
        }
        return Recipe(**(fields | rebuilt))
