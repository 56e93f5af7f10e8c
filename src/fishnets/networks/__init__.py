"""What turns each datum into its share of information: bodies, twin networks, ensembles, and baseline set networks."""

from fishnets.networks.deepsets import DeepSet, SetNetworkRecipe
from fishnets.networks.ensemble import StackedLinear, member_weights
from fishnets.networks.gated import Gated
from fishnets.networks.mlp import MLP
from fishnets.networks.set_transformer import SetTransformer
from fishnets.networks.twin import NetworkRecipe, TwinNetwork, network_from_dict, network_to_dict

__all__ = [
    "MLP",
    "DeepSet",
    "Gated",
    "NetworkRecipe",
    "SetNetworkRecipe",
    "SetTransformer",
    "StackedLinear",
    "TwinNetwork",
    "member_weights",
    "network_from_dict",
    "network_to_dict",
]
