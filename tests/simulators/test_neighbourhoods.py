"""Noisy neighbourhoods: draws against their law, exact answers against dense algebra, the ratio to the bound."""

from __future__ import annotations

import math

import pytest
import torch
from tests.laws import check_printing, close, equal, same_information
from torch import Tensor

from fishnets.errors import ConfigError, ShapeError
from fishnets.simulators import Neighbourhood, Neighbourhoods

FIELDS = ("theta", "node_features", "edge_features", "edge_index")
both = pytest.mark.parametrize("noise", ["training", "shifted"])


def draw(num_nodes: int, seed: int = 0, dtype: torch.dtype = torch.float32, **options: object) -> Neighbourhood:
    return Neighbourhoods(**options)(num_nodes, torch.Generator().manual_seed(seed), dtype)


@pytest.fixture(scope="module", params=["training", "shifted"])
def large(request: pytest.FixtureRequest) -> Neighbourhood:
    return draw(20_000, seed=1, noise=request.param)


def same_graph(actual: Neighbourhood, expected: Neighbourhood) -> None:
    for name in FIELDS:
        equal(getattr(actual, name), getattr(expected, name))


def plain_mean(graph: Neighbourhood) -> Tensor:
    target = graph.edge_index[1]
    total = torch.zeros(graph.num_nodes, 2).index_add(0, target, graph.edge_features[:, :2])
    return total / torch.bincount(target, minlength=graph.num_nodes).clamp(min=1).unsqueeze(1)


def covariances(graph: Neighbourhood) -> list[list[list[float]]]:
    """Sigma of each message as the module states it, one number at a time."""
    result = []
    for source, c in zip(graph.edge_index[0].tolist(), graph.edge_features[:, 2].tolist(), strict=True):
        k1, k2 = graph.node_features[source].tolist()
        level = 1.3 - 1.5 * math.sin(math.pi * k1) ** 4 + 0.35 * math.cos(3 * math.pi * c)
        stretch = 0.65 * math.sin(2 * math.pi * (k1 + c))
        v1, v2 = math.exp(2 * (level + stretch)), math.exp(2 * (level - stretch))
        cos, sin = math.cos(math.pi * (k2 + c * c / 2)), math.sin(math.pi * (k2 + c * c / 2))
        off = (v1 - v2) * sin * cos
        result.append([[v1 * cos**2 + v2 * sin**2, off], [off, v1 * sin**2 + v2 * cos**2]])
    return result


def log_determinants(graph: Neighbourhood) -> Tensor:
    return torch.logdet(graph.fisher_per_message())


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answers_equal_dense_algebra(noise, dtype):
    graph = draw(12, dtype=dtype, degree=(0, 6), noise=noise)
    fisher = torch.linalg.inv(torch.tensor(covariances(graph), dtype=torch.float64))
    close(graph.fisher_per_message(), fisher)

    # all nodes at once: y = A theta + noise, with A the incidence of targets
    N, E = graph.num_nodes, graph.num_edges
    incidence = torch.zeros(E, N, dtype=torch.float64)
    incidence[torch.arange(E), graph.edge_index[1]] = 1
    design, y = torch.kron(incidence, torch.eye(2).double()), graph.edge_features[:, :2].double().flatten()
    weight = torch.block_diag(*fisher)
    precision = design.mT @ weight @ design
    info, posterior = graph.information(), graph.posterior()
    close(torch.block_diag(*info.fisher), precision)
    close(info.score.flatten(), design.mT @ weight @ y)
    equal(info.fiducial, torch.zeros(2, dtype=torch.float64))
    equal(info.count, incidence.sum(0).long())
    covariance = torch.linalg.inv(precision + torch.eye(2 * N).double())
    close(posterior.mean.flatten(), covariance @ design.mT @ weight @ y)
    close(graph.bound(), covariance.diagonal().reshape(N, 2).mean(1))


def test_posterior_is_calibrated(large):
    posterior, theta, number = large.posterior(), large.theta.double(), large.num_nodes
    error = theta - posterior.mean
    ratio = error.square().sum(1) / (2 * large.bound())
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / math.sqrt(number)
    white = (torch.linalg.cholesky(posterior.precision).mT @ error.unsqueeze(-1)).squeeze(-1)
    assert float(white.mean(0).abs().max()) < 4 / math.sqrt(number)
    assert float((white.mT @ white / number - torch.eye(2).double()).abs().max()) < 4 * math.sqrt(2 / number)
    # the squared length of a pair of standard normals is exponential, of mean 2
    chi2 = white.square().sum(1).sort().values
    expected = -torch.expm1(-0.5 * chi2)
    steps = torch.linspace(0, 1, number + 1, dtype=torch.float64)
    assert float((steps[1:] - expected).abs().max()) < 1.95 / math.sqrt(number)  # Kolmogorov's one in a thousand


def test_noise_of_messages_has_the_stated_covariance(large):
    residual = large.edge_features[:, :2].double() - large.theta[large.edge_index[1]]
    white = (torch.linalg.cholesky(large.fisher_per_message()).mT @ residual.unsqueeze(-1)).squeeze(-1)
    assert float(white.mean(0).abs().max()) < 4 / math.sqrt(large.num_edges)
    assert float((white.mT @ white / large.num_edges - torch.eye(2)).abs().max()) < 4 * math.sqrt(2 / large.num_edges)


def test_exact_posterior_mean_reaches_the_bound_and_others_do_not(large):
    exact = large.posterior().mean
    assert large.mse_over_bound(exact) == (1.0, 0.0)
    assert large.mse_over_bound(plain_mean(large)).value > 5
    assert large.mse_over_bound(torch.zeros_like(large.theta)).value > 4
    # weighing each message by one number, however good, loses what the matrices hold
    sigma = torch.linalg.inv(large.fisher_per_message()).diagonal(dim1=1, dim2=2).mean(1)
    rows = torch.cat([large.edge_features[:, :2].double(), torch.ones(large.num_edges, 1)], dim=1) / sigma.unsqueeze(1)
    total = torch.zeros(large.num_nodes, 3).double().index_add(0, large.edge_index[1], rows)
    assert large.mse_over_bound(total[:, :2] / (1 + total[:, 2:])).value > 1.4


def test_ratio_is_that_of_a_known_deviation(large):
    # the truth is the exact mean plus noise of covariance C: a deviation d adds |d|²/tr C on average
    scale = (2 * large.bound()).sqrt().unsqueeze(1)
    ratio = large.mse_over_bound(large.posterior().mean + scale * torch.tensor([0.6, 0.0]))
    assert abs(ratio.value - 1.36) < 4 * ratio.error
    assert ratio.error < 0.01


def test_ratio_follows_its_formula():
    graph = draw(5)
    estimate, exact, trace = torch.ones(5, 2), graph.posterior().mean, 2 * graph.bound()
    gap = ((estimate - graph.theta).double().square().sum(1) - (exact - graph.theta).square().sum(1)) / trace
    value, error = graph.mse_over_bound(estimate.requires_grad_())
    assert value == pytest.approx(1 + float(gap.mean()))
    assert error == pytest.approx(float(gap.std()) / math.sqrt(5))
    assert math.isnan(draw(1).mse_over_bound(torch.ones(1, 2)).error)


@pytest.mark.parametrize("degree", [(1, 30), (0, 2), (7, 7)])
def test_degrees_are_uniform_on_their_range(degree):
    graph, number = draw(6000, degree=degree), 6000
    source, target = graph.edge_index
    values, counts = torch.bincount(target, minlength=number).unique(return_counts=True)
    assert values.tolist() == list(range(degree[0], degree[1] + 1))
    share = 1 / len(values)
    assert float((counts - number * share).abs().max()) <= 5 * math.sqrt(number * share * (1 - share))
    assert graph.edge_index.dtype == torch.int64
    # sources are uniform, so out-degrees are Poisson
    out_degree = torch.bincount(source, minlength=number).double()
    assert float(out_degree.var() / out_degree.mean()) == pytest.approx(1, abs=0.1)


def test_edges_come_in_no_order_and_sources_know_nothing_of_targets():
    source, target = draw(3000).edge_index.double()
    steps = torch.arange(len(source), dtype=torch.float64)
    for a, b in ((steps, target), (steps, source), (source, target)):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 4 / math.sqrt(len(steps))


def test_noise_spans_its_range(large):
    s = torch.linalg.eigvalsh(large.fisher_per_message()).rsqrt()
    assert 0.30 < float(s.min()) < 0.33
    assert 9.5 < float(s.max()) < 10
    # full matrices: of unequal axes, in every direction
    assert float((s[:, 0] / s[:, 1]).median()) > 2
    fisher = large.fisher_per_message()
    angle = 0.5 * torch.atan2(2 * fisher[:, 0, 1], fisher[:, 0, 0] - fisher[:, 1, 1])
    assert float(angle.cos().mean()) == pytest.approx(2 / math.pi, abs=0.02)


def test_few_messages_dominate():
    weight = draw(5000).fisher_per_message().diagonal(dim1=1, dim2=2).sum(1).sort(descending=True).values
    assert float(weight[: len(weight) // 10].sum() / weight.sum()) > 0.4


def test_covariates_keep_their_support_and_shift_only_where_stated():
    training, shifted = draw(20_000), draw(20_000, noise="shifted")
    for graph in (training, shifted):
        covariates = torch.cat([graph.node_features.flatten(), graph.edge_features[:, 2]])
        assert float(covariates.min()) >= 0
        assert float(covariates.max()) < 1
        assert float(graph.node_features[:, 1].mean()) == pytest.approx(0.5, abs=0.01)
    for column in (lambda x: x.node_features[:, 0], lambda x: x.edge_features[:, 2]):
        assert float(column(training).median()) == pytest.approx(0.5, abs=0.02)
        assert float(column(shifted).median()) == pytest.approx(0.125, abs=0.01)
    equal(shifted.theta, training.theta)


def test_shifted_noise_has_another_law_of_precision():
    training, shifted = (log_determinants(draw(5000, noise=noise)) for noise in ("training", "shifted"))
    assert float(training.median() - shifted.median()) > 1
    assert float(draw(5000, noise="shifted").bound().mean() / draw(5000).bound().mean()) > 1.3


def test_precision_is_no_linear_function_of_the_features(large):
    source = large.edge_index[0]
    columns = torch.cat([large.node_features[source], large.edge_features, torch.ones(large.num_edges, 1)], dim=1)
    columns, precision = columns.double(), log_determinants(large).unsqueeze(1)
    residual = precision - columns @ torch.linalg.lstsq(columns, precision).solution
    assert float(1 - residual.var() / precision.var()) < 0.5


def test_isolated_nodes_keep_the_prior():
    graph = draw(50, degree=(0, 1))
    alone = graph.information().count == 0
    assert 0 < int(alone.sum()) < 50
    equal(graph.posterior().mean[alone], torch.zeros(int(alone.sum()), 2, dtype=torch.float64))
    equal(graph.bound()[alone], torch.ones(int(alone.sum()), dtype=torch.float64))
    empty = draw(4, degree=(0, 0))
    assert (empty.num_edges, empty.edge_index.shape, empty.edge_features.shape) == (0, (2, 0), (0, 3))
    equal(empty.bound(), torch.ones(4, dtype=torch.float64))
    equal(Neighbourhoods().prior.covariance, torch.eye(2, dtype=torch.float64))


def test_order_of_the_edges_does_not_matter():
    graph = draw(40)
    order = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(1))
    shuffled = Neighbourhood(graph.theta, graph.node_features, graph.edge_features[order], graph.edge_index[:, order])
    same_information(shuffled.information(), graph.information())


def test_draws_repeat_with_the_generator():
    same_graph(draw(30, seed=3), draw(30, seed=3))
    assert not torch.equal(draw(30, seed=3).theta, draw(30, seed=4).theta)
    generator = torch.Generator().manual_seed(3)
    first, second = (Neighbourhoods()(30, generator) for _ in range(2))
    assert not torch.equal(first.theta, second.theta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_have_the_asked_dtype_on_the_generators_device_and_answers_are_float64(dtype, device):
    generator = torch.Generator(device).manual_seed(0)
    graph = Neighbourhoods()(20, generator, dtype)
    for name in FIELDS:
        value = getattr(graph, name)
        assert (value.dtype, value.device.type) == (torch.int64 if name == "edge_index" else dtype, device.type)
    assert Neighbourhoods()(2, generator).theta.dtype == torch.float32
    for answer in (graph.fisher_per_message(), graph.information().score, graph.posterior().mean, graph.bound()):
        assert answer.dtype == torch.float64
    there = graph.to("cpu")
    assert there.num_edges == graph.num_edges
    same_graph(there, there.to("cpu"))
    moved = there.to("meta")
    assert {getattr(moved, name).device.type for name in FIELDS} == {"meta"}


def test_printing():
    check_printing(Neighbourhoods(), "degree=(1, 30)", "noise='training'")
    check_printing(draw(7, degree=(3, 3)), "num_nodes=7", "num_edges=21")


@pytest.mark.parametrize("degree", [(5, 4), (-1, 3), (1, 2, 3), (1.0, 2.5), 3])
def test_impossible_degrees_are_refused(degree):
    with pytest.raises(ConfigError, match=r"`degree` is .* but the least and the greatest in-degree were expected"):
        Neighbourhoods(degree=degree)


def test_what_cannot_be_drawn_or_measured_is_refused():
    with pytest.raises(ConfigError, match='`noise` is "loud" but "training" or "shifted" was expected'):
        Neighbourhoods(noise="loud")
    for number in (0, -3, 2.0):
        with pytest.raises(ConfigError, match=f"`num_nodes` is {number} but a whole number of at least 1 was expected"):
            Neighbourhoods()(number)
    graph = draw(6)
    refused = r"`estimate` has shape \(6, 1\) but the parameters of every node, \(6, 2\), were expected"
    with pytest.raises(ShapeError, match=refused):
        graph.mse_over_bound(torch.zeros(6, 1))
    refused = r"shapes \(6, 2\), \(5, 2\), \(\d+, 3\) and \(2, \d+\) but \(N, 2\), \(N, 2\), \(E, 3\) and \(2, E\) were"
    with pytest.raises(ShapeError, match=refused):
        Neighbourhood(graph.theta, graph.node_features[:5], graph.edge_features, graph.edge_index)


@pytest.mark.gpu
def test_draws_and_answers_on_a_gpu(device):
    graph = Neighbourhoods()(500, torch.Generator(device).manual_seed(0))
    same_information(graph.information().to("cpu"), graph.to("cpu").information())
    equal(graph.information().fisher, graph.information().fisher)
