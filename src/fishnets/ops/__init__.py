"""Fused operations: one folder each, the reference first."""

__all__: list[str] = []
