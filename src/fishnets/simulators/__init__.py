"""Simulators, each with its exact answers: what networks are trained on and measured against."""

from fishnets.simulators.linear_regression import LinearRegression

__all__ = ["LinearRegression"]
