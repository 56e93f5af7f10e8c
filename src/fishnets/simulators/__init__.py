"""Simulators, each with its exact answers: what networks are trained on and measured against."""

from fishnets.simulators.gamma_population import GammaPopulation
from fishnets.simulators.grid import GridPosterior
from fishnets.simulators.linear_regression import LinearRegression
from fishnets.simulators.neighbourhoods import Neighbourhood, Neighbourhoods
from fishnets.simulators.normal import NormalSample
from fishnets.simulators.supernova_posterior import SupernovaPosterior
from fishnets.simulators.supernovae import Supernovae

__all__ = [
    "GammaPopulation",
    "GridPosterior",
    "LinearRegression",
    "Neighbourhood",
    "Neighbourhoods",
    "NormalSample",
    "SupernovaPosterior",
    "Supernovae",
]
