"""Oracles: the information of messages, one at a time, in dense float64 algebra written without the library's."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dense_estimates", "dense_information", "dense_parts", "prior_precision"]


def dense_parts(raw: Tensor, num_params: int, form: str) -> tuple[Tensor, Tensor]:
    """Scores (E, p) and Fisher matrices (E, p, p) of raw outputs (E, p + p(p+1)/2), message by message."""
    parts = [_dense_part(row, num_params, form) for row in raw.double()]
    if not parts:
        return raw.new_zeros(0, num_params).double(), raw.new_zeros(0, num_params, num_params).double()
    return torch.stack([score for score, _ in parts]), torch.stack([fisher for _, fisher in parts])


def dense_information(aggregation, x: Tensor, index: Tensor, num_nodes: int, weight: Tensor | None = None):
    """Summed scores (N, p) and Fisher matrices (N, p, p) of messages (E, in_channels)."""
    layer = aggregation.lin_in
    raw = x.double() @ layer.weight.double().T + layer.bias.double()
    score, fisher = dense_parts(raw, aggregation.num_params, aggregation.form)
    weight = score.new_ones(len(score)) if weight is None else weight.double()
    chosen = (index[None, :] == torch.arange(num_nodes, device=index.device)[:, None]).double() * weight  # (N, E)
    return torch.einsum("ne,ei->ni", chosen, score), torch.einsum("ne,eij->nij", chosen, fisher)


def prior_precision(aggregation) -> Tensor:
    """The prior's precision (p, p): learned on the diagonal, or one."""
    if aggregation.log_prior is None:
        return torch.eye(aggregation.num_params, dtype=torch.float64, device=aggregation.lin_in.weight.device)
    return torch.diag(aggregation.log_prior.double().exp())


def dense_estimates(aggregation, x: Tensor, index: Tensor, num_nodes: int, weight: Tensor | None = None) -> Tensor:
    """Latent estimates (N, p), by matrix inverse."""
    score, fisher = dense_information(aggregation, x, index, num_nodes, weight)
    return torch.stack(
        [torch.linalg.inv(F + prior_precision(aggregation)) @ t for t, F in zip(score, fisher, strict=True)]
    )


def _dense_part(row: Tensor, p: int, form: str) -> tuple[Tensor, Tensor]:
    vector, entries = row[:p], row[p:]
    factor = torch.zeros(p, p, dtype=torch.float64, device=row.device)
    if form == "legacy":
        listed = [*entries[p:], *entries.flip(0)]  # row by row through the whole square
        for k, entry in enumerate(listed):
            factor[k // p, k % p] = entry
    else:
        listed = [(i, j) for i in range(p) for j in range(i + 1)]
        for (i, j), entry in zip(listed, entries, strict=True):
            factor[i, j] = entry
    for i in range(p):
        factor[i, i] = torch.log1p(factor[i, i].exp())
    fisher = factor @ factor.T
    score = {"regression": factor @ vector, "location": fisher @ vector}.get(form, vector)
    return score, fisher
