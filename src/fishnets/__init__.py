"""Fishnets."""
