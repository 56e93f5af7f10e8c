"""Fused operations: one folder each, the reference first."""
