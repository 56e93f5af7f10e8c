r"""FishnetsAggregation: an aggregation for PyTorch Geometric that knows how much each message is worth.

A linear layer turns each message into a score :math:`t_e` and a Fisher matrix :math:`F_e`. Both are summed over the
messages of a node, a prior precision :math:`P` is added, and

.. math:: z_v = \Big(P + \sum_e w_e F_e\Big)^{-1} \sum_e w_e t_e, \qquad
          s_v = \ln\Big(1 + \operatorname{diag}\big(\textstyle\sum_e w_e F_e\big) / \operatorname{diag} P\Big),

estimate and log-information, are mapped linearly to the node's channels. The paper passes on the estimate alone and
throws the information away. A node without messages receives zero.

Weights :math:`w_e \ge 0` scale a message's information: 0 removes it, 2 counts it twice. Sums are additive, so parts of
a neighbourhood can be aggregated apart and merged as :class:`fishnets.Information`.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import Aggregation

from fishnets.algebra.cholesky import inverse_softplus
from fishnets.algebra.information import Information
from fishnets.algebra.packing import diagonal_positions, unpack_symmetric
from fishnets.errors import DataError, ShapeError, describe_rows, expect_positive
from fishnets.graphs.forms import FORMS, Form, expect_form, information_rows, num_outputs
from fishnets.ops.estimate_messages import estimate_messages, solve_features
from fishnets.ops.groups import Groups, expect_bounds, group_rows
from fishnets.ops.segment_information import segment_sum

__all__ = ["Aggregated", "FishnetsAggregation", "register_with_pyg"]


@dataclass(frozen=True, eq=False)
class Aggregated:
    """What a neighbourhood says, beside the features that are passed on.

    Args:
        information: Summed information of each node, without the prior, batch shape (*, N).
        estimate: Latent estimates z, shape (*, N, p).
        variance: Marginal variances of the estimates, prior included, shape (*, N, p).
        log_determinant: Of the precision, prior included, shape (*, N).
        leverage: Each message's share of its node's precision, the trace of its Fisher matrix times the covariance;
            a node's leverages add to p less the prior's share. Shape (*, E).
    """

    information: Information
    estimate: Tensor
    variance: Tensor
    log_determinant: Tensor
    leverage: Tensor


class FishnetsAggregation(Aggregation):  # type: ignore[misc]
    """Sums learned information over messages and passes on what it says.

    Args:
        in_channels: Width of a message.
        out_channels: Width of the output; that of a message by default, as most convolutions expect.
        num_params: Number of latent parameters p; a message is turned into p + p(p+1)/2 numbers.
        form: What a message's outputs mean (:mod:`fishnets.graphs.forms`): ``"regression"`` or ``"location"``;
            ``"paper"`` for the paper's, with scores, a fixed prior of one, and no log-information; ``"legacy"`` for
            parity with the authors' public code.
        backend: ``"auto"``, ``"reference"``, ``"separate"`` or ``"fused"``; see :mod:`fishnets.ops.estimate_messages`.
        check_finite: Whether to look for messages that are not finite, and name the first; waits for a GPU.
        device: Device of the parameters.
        dtype: Precision of the parameters.

    Example:
        >>> aggregation = FishnetsAggregation(16, num_params=4)
        >>> x, index = torch.randn(5, 16), torch.tensor([0, 0, 3, 0, 3])
        >>> aggregation(x, index, dim_size=4).shape
        torch.Size([4, 16])
        >>> aggregation
        FishnetsAggregation(16, 16, num_params=4)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        num_params: int = 8,
        *,
        form: Form = "regression",
        backend: str = "auto",
        check_finite: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        expect_form(form)
        out_channels = in_channels if out_channels is None else out_channels
        expect_positive(in_channels=in_channels, out_channels=out_channels, num_params=num_params)
        self.in_channels, self.out_channels, self.num_params = in_channels, out_channels, num_params
        self.form, self.backend, self.check_finite = form, backend, check_finite
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        plain = form in ("paper", "legacy")
        self.lin_in = nn.Linear(in_channels, num_outputs(num_params), **where)
        self.lin_out = nn.Linear(num_params if plain else 2 * num_params, out_channels, bias=plain, **where)
        self.log_prior = None if plain else nn.Parameter(torch.empty(num_params, **where))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        self.lin_in.reset_parameters()
        self.lin_out.reset_parameters()
        if self.log_prior is not None:
            self._match_scales()

    @torch.no_grad()
    def _match_scales(self) -> None:
        """Starts as a mean over messages that a prior of one message shrinks, at the messages' own scale.

        What log-information adds starts at zero: it grows with the degree, and would drown the estimate.
        """
        p, weight, bias = self.num_params, self.lin_in.weight, self.lin_in.bias
        rows = torch.empty(p, self.in_channels, dtype=torch.float32, device=weight.device)
        weight[:p] = nn.init.orthogonal_(rows).to(weight)
        weight[p:] *= 0.5
        bias.zero_()
        bias[p + diagonal_positions(p, bias.device)] = inverse_softplus(1.0)
        assert self.log_prior is not None
        self.log_prior.zero_()
        nn.init.normal_(self.lin_out.weight[:, :p], std=1 / math.sqrt(p))
        self.lin_out.weight[:, p:] = 0

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Aggregates messages.

        Args:
            x: Messages, shape (*, E, *, in_channels), with E along ``dim``.
            index: Node of each message, in any order, shape (E,).
            ptr: Bounds of the nodes' messages, where these are grouped, shape (N + 1,).
            dim_size: Number of nodes N.
            dim: Dimension of the messages; any but the last.
            weight: How much each message counts, not negative, shape (E,); 0 removes one that is finite.

        Returns:
            Features of each node, shape (*, N, *, out_channels).
        """
        self._expect(x, weight, dim)
        groups = bounds_and_order(index, ptr, dim_size, x.shape[dim])
        rows, form = x.movedim(dim, -2), FORMS[self.form]
        if form is None:
            information = self.encode(rows)
            information = information if weight is None else information * weight.to(information).unsqueeze(-1)
            information = information if groups.order is None else information.index_select(-2, groups.order)
            return self.decode(segment_sum(information, groups.ptr).movedim(-2, dim), x.dtype)
        given: tuple[Tensor, Tensor, Tensor] = (rows, self.lin_in.weight, self.lin_in.bias)
        if autocasts(x.device):
            half = torch.get_autocast_dtype(x.device.type)
            given = (rows.to(half), given[1].to(half), given[2].to(half))
        prior = self._prior(_precise(given[2]))
        options: dict[str, Any] = {"weight": weight, "order": groups.order, "backend": self.backend}
        options["check_finite"] = self.check_finite
        features = estimate_messages(*given, prior, groups.ptr, form, **options)
        return self._channels(features.movedim(-2, dim), x.dtype)

    def encode(self, x: Tensor) -> Tensor:
        """Rows of information (*, p + p(p+1)/2) of messages (*, in_channels), in float32 or better.

        They may be scaled, gathered and summed in any order, for instance by a sparse product with an adjacency.
        """
        self.expect_messages(x)
        raw = self.lin_in(x)
        with without_autocast(raw.device):
            return information_rows(_precise(raw), self.num_params, self.form)

    def decode(self, total: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Features (*, out_channels) from summed rows of information (*, p + p(p+1)/2)."""
        with without_autocast(total.device):
            total, p = _precise(total), self.num_params
            features = solve_features(total[..., :p], total[..., p:], self._prior(total))
        return self._channels(features, dtype)

    def inspect(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        weight: Tensor | None = None,
    ) -> Aggregated:
        """Says what messages (E, in_channels) are worth; arguments as in :meth:`forward`.

        Example:
            >>> aggregation = FishnetsAggregation(16, num_params=4)
            >>> aggregation.inspect(torch.randn(5, 16), torch.tensor([0, 0, 1, 0, 1])).leverage.shape
            torch.Size([5])
        """
        if x.dim() != 2:
            raise ShapeError(f"`x` has shape {tuple(x.shape)} but (E, {self.in_channels}) was expected.")
        if index is None and ptr is None:
            index = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        self._expect(x, weight, 0)
        if ptr is not None:
            index = None  # as in :meth:`forward`
            if dim_size not in (None, len(ptr) - 1):
                raise ShapeError(f"`ptr` bounds the messages of {len(ptr) - 1} nodes but `dim_size` is {dim_size}.")
        size, p = _num_groups(index, ptr, dim_size), self.num_params
        rows, group = self.encode(x), _index(index, ptr, x.shape[0])
        if group.numel() and int(group.max()) >= size:
            raise DataError(f"`index` goes up to {int(group.max())} but `dim_size` is {size}.")
        rows = rows if weight is None else rows * weight.to(rows).unsqueeze(-1)
        total = rows.new_zeros((size, rows.shape[1])).index_add(0, group, rows)
        score, fisher = total[:, :p], unpack_symmetric(total[:, p:])
        count = torch.zeros(size, dtype=torch.int64, device=x.device).index_add(0, group, torch.ones_like(group))
        factor = torch.linalg.cholesky_ex(fisher + torch.diag_embed(self._prior(fisher)))[0]
        covariance = torch.cholesky_inverse(factor)
        leverage = (unpack_symmetric(rows[:, p:]) * covariance[group]).sum((-2, -1))
        return Aggregated(
            Information(score, fisher, torch.zeros_like(score[0]) if size else score.new_zeros(p), count),
            torch.cholesky_solve(score.unsqueeze(-1), factor).squeeze(-1),
            covariance.diagonal(dim1=-2, dim2=-1),
            2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1),
            leverage,
        )

    def _channels(self, features: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Output (*, out_channels) from estimates and log-information (*, 2p)."""
        plain = self.log_prior is None
        kept = features[..., : self.num_params] if plain else features
        narrow = dtype if dtype is not None and not autocasts(features.device) else None
        out: Tensor = self.lin_out(kept if narrow is None else kept.to(narrow))
        return out * (features[..., self.num_params :].sum(-1, keepdim=True) > 0).to(out) if plain else out

    def _prior(self, like: Tensor) -> Tensor:
        """Precisions of the prior (p,)."""
        return like.new_ones(self.num_params) if self.log_prior is None else self.log_prior.to(like).exp()

    def _expect(self, x: Tensor, weight: Tensor | None, dim: int) -> None:
        self.expect_messages(x)
        if dim % x.dim() == x.dim() - 1:
            raise ShapeError(
                f"`dim` is {dim}, the last of {x.dim()}, but that one holds the channels; give the dimension of the "
                "messages."
            )
        if weight is not None:
            expect_weights("`weight`", weight, x.shape[dim])

    def expect_messages(self, x: Tensor) -> None:
        """Raises unless messages have our width and precision."""
        if x.dim() < 2 or x.shape[-1] != self.in_channels:
            raise ShapeError(
                f"Messages of shape {tuple(x.shape)} were given to {self!r}, which expects {self.in_channels} channels "
                "in the last dimension. One instance serves one width: give layers of other widths their own, and "
                "leave `decomposed_layers` at 1, because a Fisher matrix mixes all channels."
            )
        dtype = self.lin_in.weight.dtype
        if x.dtype != dtype and not autocasts(x.device):
            raise DataError(
                f"Messages are {x.dtype} but the parameters of {self!r} are {dtype}; convert one of them, for instance "
                "with `model.to(x.dtype)`."
            )

    def __repr__(self) -> str:
        form = "" if self.form == "regression" else f", form='{self.form}'"
        return f"FishnetsAggregation({self.in_channels}, {self.out_channels}, num_params={self.num_params}{form})"


def register_with_pyg() -> None:
    """Lets PyTorch Geometric find the aggregation by name: ``SAGEConv(..., aggr="fishnets", aggr_kwargs={...})``."""
    from torch_geometric.nn import aggr

    aggr.FishnetsAggregation = FishnetsAggregation


def expect_weights(name: str, weight: Tensor, num_messages: int) -> None:
    """Raises unless there is a finite weight for each message, and none is negative; not looked at while compiling."""
    if weight.shape != (num_messages,):
        raise ShapeError(
            f"{name} has shape {tuple(weight.shape)} but one for each message, ({num_messages},), was expected."
        )
    if torch.compiler.is_compiling() or weight.is_meta:
        return
    good = (weight >= 0) & torch.isfinite(weight)
    if not bool(good.all()):
        where = (~good).nonzero().flatten().tolist()
        raise DataError(
            f"{name} is negative or not finite at {describe_rows(where)}; a weight says how much a message counts, and "
            "0 removes it."
        )


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which nothing is rounded to half precision: sums and factorisations need more."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


def autocasts(device: torch.device) -> bool:
    """Whether products on a device are rounded to half precision now."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def _precise(values: Tensor) -> Tensor:
    """Values in float32 at least: sums and factorisations need it."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _expect_index(index: Tensor, num_messages: int) -> None:
    if index.shape != (num_messages,):
        raise ShapeError(
            f"`index` has shape {tuple(index.shape)} but there are {num_messages} messages, each with one node; give "
            "messages, such as `x[edge_index[0]]`, not nodes."
        )
    if index.is_floating_point() or index.dtype == torch.bool:
        raise DataError(f"`index` is {index.dtype} but whole numbers, the node of each message, were expected.")


def _index(index: Tensor | None, ptr: Tensor | None, num_messages: int) -> Tensor:
    if index is not None:
        _expect_index(index, num_messages)
        return index
    assert ptr is not None
    expect_bounds(ptr, num_messages)
    groups = torch.arange(ptr.numel() - 1, device=ptr.device)
    return torch.repeat_interleave(groups, ptr.diff(), output_size=num_messages)


def bounds_and_order(index: Tensor | None, ptr: Tensor | None, dim_size: int | None, num_messages: int) -> Groups:
    """Groups of messages, from what PyTorch Geometric gives an aggregation."""
    if ptr is not None:
        expect_bounds(ptr, num_messages)
        return Groups(ptr, None)
    assert index is not None
    _expect_index(index, num_messages)
    return group_rows(index, _num_groups(index, None, dim_size))


def _num_groups(index: Tensor | None, ptr: Tensor | None, dim_size: int | None) -> int:
    if dim_size is not None:
        return dim_size
    if ptr is not None:
        return ptr.numel() - 1
    assert index is not None
    return int(index.max()) + 1 if index.numel() else 0
