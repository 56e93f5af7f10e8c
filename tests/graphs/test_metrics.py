"""The area under the ROC curve is the share of pairs in the right order, whatever the ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import PROPERTY
from torch import Tensor

from fishnets.errors import DataError, NonFiniteError, ShapeError
from fishnets.graphs.metrics import roc_auc


def by_pairs(score: Tensor, label: Tensor) -> float:
    """Every pair of a positive and a negative, one after another."""
    areas = []
    for s, y in zip(score.unbind(1), label.unbind(1), strict=True):
        pairs = [(p, n) for p in s[y == 1].tolist() for n in s[y == 0].tolist()]
        if pairs:
            areas.append(sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs))
    return sum(areas) / len(areas)


@PROPERTY
@given(
    num=st.integers(2, 30),
    tasks=st.integers(1, 5),
    levels=st.sampled_from([1, 2, 4, 1000]),
    unknown=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_area_is_the_share_of_ordered_pairs_with_ties_and_unknown_labels(num, tasks, levels, unknown, seed):
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(levels, (num, tasks), generator=generator) / 7 - 1
    label = torch.randint(2, (num, tasks), generator=generator).double()
    label[torch.rand(num, tasks, generator=generator) < unknown] = math.nan
    label[:2, 0] = torch.tensor([0.0, 1.0], dtype=torch.float64)  # one task at least can be scored
    found = roc_auc(score, label)
    assert found.dtype == torch.float64
    assert found.shape == ()
    assert found.item() == pytest.approx(by_pairs(score, label), rel=1e-12)


def test_perfect_constant_and_reversed_scores(device, dtype):
    label = torch.tensor([0, 1, 0, 1, 1], device=device)
    assert roc_auc(label.to(dtype), label) == 1
    assert roc_auc(torch.zeros(5, device=device, dtype=dtype), label) == 0.5
    assert roc_auc(-label.to(dtype), label) == 0


def test_infinite_scores_are_ranked_and_tie():
    score = torch.tensor([-math.inf, 0.0, math.inf, math.inf])
    assert roc_auc(score, torch.tensor([0, 0, 0, 1])) == pytest.approx(2.5 / 3)


@pytest.mark.parametrize("kind", [torch.bool, torch.int8, torch.int64, torch.float16])
def test_labels_of_every_type_agree(kind):
    generator = torch.Generator().manual_seed(3)
    score, label = torch.randn(20, 3, generator=generator), torch.randint(2, (20, 3), generator=generator)
    assert roc_auc(score.bfloat16(), label.to(kind)) == roc_auc(score.bfloat16(), label)


def test_tasks_with_one_class_or_no_labels_do_not_count():
    generator = torch.Generator().manual_seed(4)
    score = torch.randn(9, 4, generator=generator)
    label = torch.tensor([0.0, 1.0, 1.0] * 3).unsqueeze(1).repeat(1, 4)
    label[:, 1], label[:, 2], label[:, 3] = 0.0, 1.0, math.nan
    assert roc_auc(score, label) == roc_auc(score[:, 0], label[:, 0])


def test_order_of_rows_and_increasing_maps_do_not_matter():
    generator = torch.Generator().manual_seed(5)
    score = torch.randint(8, (40, 3), generator=generator).double()
    label = torch.randint(2, (40, 3), generator=generator)
    order = torch.randperm(40, generator=generator)
    assert roc_auc(score[order], label[order]) == roc_auc(score, label)
    assert roc_auc(score.exp(), label) == roc_auc(score, label)


def test_a_score_that_is_nan_is_refused_unless_its_label_is_unknown():
    score = torch.tensor([0.1, 0.9, math.nan, 0.2])
    assert roc_auc(score, torch.tensor([0.0, 1.0, math.nan, 0.0])) == 1
    with pytest.raises(NonFiniteError, match=r"`score` is NaN in rows 2, which cannot be ranked"):
        roc_auc(score, torch.tensor([0, 1, 1, 0]))


@pytest.mark.parametrize(
    ("score", "label"), [((4, 2), (4,)), ((4,), (4, 1)), ((4, 2), (2, 4)), ((), ()), ((2, 2, 2), (2, 2, 2))]
)
def test_wrong_shapes_are_named(score, label):
    with pytest.raises(ShapeError, match=r"`score` has shape .* and `label` .* the same shape, \(n, tasks\) or \(n,\)"):
        roc_auc(torch.zeros(score), torch.zeros(label))


def test_labels_that_are_no_classes_are_named():
    with pytest.raises(DataError, match=r"`label` holds -1.0, 2.0 but 0, 1 or, where unknown, NaN was expected"):
        roc_auc(torch.zeros(4), torch.tensor([-1.0, 0.0, 1.0, 2.0]))


@pytest.mark.parametrize(("num", "value"), [(3, 1.0), (3, 0.0), (3, math.nan), (0, 0.0)])
def test_no_task_with_both_classes_is_an_error(num, value):
    with pytest.raises(DataError, match=r"None of the 2 tasks has both positives and negatives"):
        roc_auc(torch.zeros(num, 2), torch.full((num, 2), value))
