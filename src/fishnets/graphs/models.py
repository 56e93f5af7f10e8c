r"""DeeperGCN: residual graph networks whose aggregation can be exchanged.

Features of nodes and edges are mapped linearly to a common width, :math:`x^0` and :math:`e`. Each layer has a
generalised convolution, PyG's ``GENConv``,

.. math:: C_l(x)_v = \mathrm{MLP}_l\Big(x_v + \mathrm{AGG}_l\big\{\mathrm{relu}(x_u + e_{uv}) + 10^{-7}
          : u \to v\big\}\Big),

and layers are chained by pre-activated residuals ("res+"), normalisation, ReLU, dropout, convolution, sum,

.. math:: x^1 = C_0(x^0), \qquad x^{l+1} = x^l + C_l\big(\mathrm{drop}(\mathrm{relu}(\mathrm{norm}_l(x^l)))\big), \qquad
          y = W\,\mathrm{drop}\big(\mathrm{relu}(\mathrm{norm}_0(x^L))\big) + b .

Nodes may be pooled before the last map, for one prediction per graph. ``AGG`` is a softmax with a temperature in
DeeperGCN (Li et al. 2020, arXiv:2006.07739) and Fisher-weighted in the paper (section 3.3): a drop-in comparison.
:data:`fishnets.graphs.PAPER_MODELS` holds the sizes that were published. DeeperGCN trains on random parts of a large
graph, which ``torch_geometric.loader.RandomNodeLoader`` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import DeepGCNLayer, aggr
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.inits import reset
from torch_geometric.nn.resolver import aggregation_resolver

from fishnets.errors import ConfigError, DataError, ShapeError, expect_last_dim, expect_positive
from fishnets.graphs.aggregation import FishnetsAggregation, autocasts
from fishnets.graphs.dropout import Dropout
from fishnets.graphs.gen_conv import Convolution
from fishnets.graphs.softmax import SoftmaxAggregation
from fishnets.ops.memory import remembered

__all__ = ["CategoryEncoder", "DeeperGCN"]

NORMS = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}


class DeeperGCN(nn.Module):
    """Deep residual graph network for nodes or, with ``pool``, for graphs.

    Args:
        node_dim: Width of the nodes' features or, for categories, the number of values of each.
        edge_dim: The same of the edges; None without features.
        num_outputs: Width of the output.
        hidden: Width of every layer.
        num_layers: Number of layers.
        aggregation: ``"softmax"`` (DyResGEN: the temperature is learned), ``"softmax_sg"`` (ResGEN: it is fixed, and
            the weights pass no gradient), ``"fishnets"``, the name of another aggregation of PyTorch Geometric, or a
            callable that makes an aggregation for a width, called once per layer.
        share_aggregation: Whether all layers use one aggregation.
        temperature: What a softmax multiplies messages with, at first.
        learn_temperature: Whether that changes in training; as the kind of softmax says by default.
        norm: ``"layer"`` or ``"batch"`` normalisation.
        dropout: Share of the features that is dropped.
        mlp_layers: Number of linear layers after each aggregation, twice as wide in between.
        bias: Whether those have biases.
        one_hot: Number of species: their indicators, mapped linearly to as many numbers, join the nodes' features.
        encode_edges: ``"once"``, or ``"each layer"`` to map the edges' features again in every layer; categories are
            then looked up anew in each.
        checkpointing: Whether to recompute two layers of three for gradients, which takes less memory and more time.
            Batch normalisation then counts a batch twice in its running statistics.
        pool: Aggregation of the nodes of a graph, by name or as a callable; None for an output per node.
        last_activation: Whether the last normalisation is followed by ReLU; DeeperGCN for molecules has none.

    Example:
        >>> from fishnets.graphs import FishnetsAggregation
        >>> model = DeeperGCN(8, 3, num_outputs=2, num_layers=3, aggregation=FishnetsAggregation)
        >>> edge_index = torch.tensor([[0, 1, 2, 0], [1, 0, 0, 2]])
        >>> model(torch.randn(3, 8), edge_index, torch.randn(4, 3)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        node_dim: int | Sequence[int],
        edge_dim: int | Sequence[int] | None,
        num_outputs: int,
        *,
        hidden: int = 64,
        num_layers: int = 8,
        aggregation: str | Callable[[int], Aggregation] = "softmax",
        share_aggregation: bool = False,
        temperature: float = 1.0,
        learn_temperature: bool | None = None,
        norm: Literal["layer", "batch"] = "layer",
        dropout: float = 0.1,
        mlp_layers: int = 2,
        bias: bool = False,
        one_hot: int | None = None,
        encode_edges: Literal["once", "each layer"] = "once",
        checkpointing: bool = False,
        pool: str | Callable[[int], Aggregation] | None = None,
        last_activation: bool = True,
    ) -> None:
        super().__init__()
        expect_positive(num_outputs=num_outputs, hidden=hidden, num_layers=num_layers, mlp_layers=mlp_layers)
        expect_positive(one_hot=1 if one_hot is None else one_hot)
        if one_hot is not None and not isinstance(node_dim, int):
            raise ConfigError("`one_hot` joins features that are numbers, but `node_dim` says they are categories.")
        if norm not in NORMS:
            raise ConfigError(f'`norm` is {norm!r} but "layer" or "batch" was expected.')
        if encode_edges not in (("once",) if edge_dim is None else ("once", "each layer")):
            raise ConfigError(
                f'`encode_edges` is {encode_edges!r} and `edge_dim` {edge_dim}, but "once" or, with edge features, '
                '"each layer" was expected.'
            )
        if not 0 <= dropout < 1:
            raise ConfigError(f"`dropout` is {dropout} but a share in [0, 1) was expected.")
        self.node_dim = _width("node_dim", node_dim)
        self.edge_dim = None if edge_dim is None else _width("edge_dim", edge_dim)
        self.one_hot, self.last_activation = one_hot, last_activation
        self.drop = Dropout(dropout)
        self.species_encoder = None if one_hot is None else nn.Linear(one_hot, one_hot)
        self.node_encoder = _encoder(node_dim if one_hot is None else node_dim + one_hot, hidden)  # type: ignore[operator]
        by_layer = encode_edges == "each layer"
        looked_up = by_layer and not isinstance(edge_dim, int)
        self.edge_encoder = None if edge_dim is None or looked_up else _encoder(edge_dim, hidden)
        make = partial(_make, "aggregation", aggregation, hidden, temperature, learn_temperature)
        self.layers = nn.ModuleList()
        for i, aggregate in enumerate(_repeat(make, num_layers, share_aggregation)):
            conv: nn.Module = Convolution(hidden, hidden, aggregate, norm=norm, num_layers=mlp_layers, bias=bias)
            if by_layer and edge_dim is not None:
                conv = _EdgeEncodingConv(conv, _encoder(edge_dim if looked_up else hidden, hidden))
            activation = nn.Sequential(nn.ReLU(), self.drop)
            block = {"block": "res+", "ckpt_grad": checkpointing and i % 3 > 0}
            self.layers.append(DeepGCNLayer(conv, NORMS[norm](hidden), activation, **block))
        self.pool = None if pool is None else _make("pool", pool, hidden)
        self.output = nn.Linear(hidden, num_outputs)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        for child in self.children():
            reset(child)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        species: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Predicts for every node or, with ``pool``, for every graph.

        Args:
            x: Features of the nodes, shape (N, node_dim).
            edge_index: Sources and targets, shape (2, E).
            edge_attr: Features of the edges, shape (E, edge_dim), where the network was made for them.
            batch: Graph of each node, shape (N,), read by ``pool`` alone; one graph by default.
            species: Species of each node, from 0 to ``one_hot`` - 1, shape (N,), where the network was made for them.
            batch_size: Number of graphs B; where it is given, nothing waits for a GPU to count them.

        Returns:
            Outputs of the nodes, shape (N, num_outputs), or of the graphs, shape (B, num_outputs).
        """
        self._expect_inputs(x, edge_index, edge_attr, batch, species)
        if self.species_encoder is not None and species is not None:
            known = functional.one_hot(species.long(), self.species_encoder.in_features).to(x)
            x = torch.cat([x, self.species_encoder(known)], dim=-1)
        x = self.node_encoder(x)
        edge = edge_attr if self.edge_encoder is None else self.edge_encoder(edge_attr)
        first: Any = self.layers[0]
        x = first.conv(x, edge_index, edge)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge)
        x = first.norm(x)
        x = self.drop(x.relu() if self.last_activation else x)
        out: Tensor = self.output(x if self.pool is None else self.pool(x, batch, dim_size=batch_size))
        return out

    def _expect_inputs(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, batch: Tensor | None, species: Tensor | None
    ) -> None:
        expect_last_dim("x", x, self.node_dim)
        _expect_precision("x", x, self.node_encoder)
        if edge_attr is not None and isinstance(self.edge_encoder, nn.Linear):
            _expect_precision("edge_attr", edge_attr, self.edge_encoder)
        _expect_given("edge_attr", edge_attr, "edge_dim", self.edge_dim)
        _expect_given("species", species, "one_hot", self.one_hot)
        if edge_attr is not None and self.edge_dim is not None:
            _expect_shape("edge_attr", edge_attr, (edge_index.shape[1], self.edge_dim))
        if batch is not None:
            _expect_shape("batch", batch, x.shape[:1])
        if species is not None and self.one_hot is not None:
            _expect_shape("species", species, x.shape[:1])
            if not torch.compiler.is_compiling():
                remembered(species, ("species", self.one_hot), partial(_expect_species, species, self.one_hot))


class CategoryEncoder(nn.Module):
    """Adds up a learned vector for each of several categories.

    Args:
        sizes: Number of values of each category.
        width: Width of the vectors.

    Example:
        >>> CategoryEncoder((3, 2), 4)(torch.tensor([[2, 0], [0, 1]])).shape
        torch.Size([2, 4])
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.table = nn.Embedding(sum(sizes), width)
        self.register_buffer("first", torch.tensor([0, *sizes[:-1]]).cumsum(0), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all vectors anew."""
        start = 0
        for size in self.sizes:  # each like a layer of its own
            nn.init.xavier_uniform_(self.table.weight.data[start : start + size])
            start += size

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (n, width) of rows of categories (n, number of categories)."""
        if x.is_floating_point():
            raise DataError(f"Categories are {x.dtype} but whole numbers were expected, such as torch.int64.")
        if not torch.compiler.is_compiling() and not x.is_cuda:
            limits = torch.tensor(self.sizes)
            if bool(((x < 0) | (x >= limits)).any()):
                column = int(((x < 0) | (x >= limits)).any(0).nonzero()[0])
                raise DataError(
                    f"Category {column} runs from {int(x[:, column].min())} to {int(x[:, column].max())} but 0 to "
                    f"{self.sizes[column] - 1} was expected."
                )
        # a product with indicators: the gradient of a look-up adds thousands of rows into each of a few
        place = x.long() + self.first
        known = self.table.weight.new_zeros(len(x), self.table.num_embeddings).scatter_(1, place, 1.0)
        out: Tensor = known @ self.table.weight
        return out


class _EdgeEncodingConv(nn.Module):
    """A convolution that maps the edges' features first, so that checkpointing does not keep them."""

    def __init__(self, conv: nn.Module, encoder: nn.Module) -> None:
        super().__init__()
        self.conv, self.encoder = conv, encoder

    def reset_parameters(self) -> None:
        for child in self.children():
            reset(child)

    def forward(self, x: Tensor, edge_index: Tensor, edge: Tensor) -> Tensor:
        out: Tensor = self.conv(x, edge_index, self.encoder(edge))
        return out


def _width(name: str, sizes: int | Sequence[int]) -> int:
    """Number of columns of features."""
    widths = {name: sizes} if isinstance(sizes, int) else {f"{name}[{i}]": size for i, size in enumerate(sizes)}
    expect_positive(**widths)
    if not widths:
        raise ConfigError(f"`{name}` has no categories; give the number of values of each.")
    return sizes if isinstance(sizes, int) else len(sizes)


def _encoder(sizes: int | Sequence[int], width: int) -> nn.Module:
    """From features, or categories, to a width."""
    return nn.Linear(sizes, width) if isinstance(sizes, int) else CategoryEncoder(sizes, width)


def _make(knob: str, choice: object, width: int, temperature: float = 1.0, learn: bool | None = None) -> Aggregation:
    """The chosen aggregation for a width."""
    if choice in ("softmax", "softmax_sg"):
        semi = choice == "softmax_sg"
        if semi and learn:
            raise ConfigError('"softmax_sg" passes no gradient to its temperature; to learn it, take "softmax".')
        if semi:
            return aggr.SoftmaxAggregation(temperature, learn=False, semi_grad=True)
        return SoftmaxAggregation(temperature, learn is not False)
    if temperature != 1 or learn is not None:
        raise ConfigError(f"A temperature was given but `{knob}` is {choice!r}, which has none.")
    if choice == "fishnets":
        return FishnetsAggregation(width)
    if isinstance(choice, str):
        try:
            return aggregation_resolver(choice)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"`{knob}` is {choice!r}, which PyTorch Geometric cannot make by name alone: {error}. Give a callable "
                "where an aggregation needs arguments."
            ) from error
    made = choice(width) if callable(choice) and not isinstance(choice, nn.Module) else None
    if not isinstance(made, Aggregation):
        raise ConfigError(
            f"`{knob}` is {choice!r} but a name, or a callable that makes an aggregation for a width, was expected, "
            "such as `lambda width: FishnetsAggregation(width, num_params=8)`."
        )
    return made


def _repeat(make: Callable[[], Aggregation], count: int, shared: bool) -> list[Aggregation]:
    """An aggregation for each layer: always the same one, or each its own."""
    if shared:
        return [make()] * count
    made = [make() for _ in range(count)]
    if len({id(aggregation) for aggregation in made}) < count:
        raise ConfigError("`aggregation` returned one instance twice. To share it, set `share_aggregation=True`.")
    return made


def _expect_precision(name: str, features: Tensor, encoder: nn.Module) -> None:
    if isinstance(encoder, nn.Linear) and not autocasts(features.device):
        precision = encoder.weight.dtype
        if features.dtype != precision:
            raise DataError(
                f"`{name}` is {features.dtype} but the network is {precision}: give `{name}.to({precision})`, or "
                "convert the network."
            )


def _expect_given(name: str, tensor: Tensor | None, knob: str, size: int | None) -> None:
    if (tensor is None) != (size is None):
        given = "not given" if tensor is None else "given"
        raise ConfigError(f"The network was made with {knob}={size} but `{name}` was {given}.")


def _expect_species(species: Tensor, count: int) -> None:
    strange = (species < 0) | (species >= count) | (species != species.long())
    if bool(strange.any()):
        raise DataError(
            f"`species` holds others than the numbers 0 to {count - 1}. Number those of the whole graph with "
            "`torch.unique(species, return_inverse=True)[1].flatten()`."
        )


def _expect_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ShapeError(f"`{name}` has shape {tuple(tensor.shape)} but {tuple(shape)} was expected.")
