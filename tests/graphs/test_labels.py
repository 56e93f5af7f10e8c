"""Labels: which are accepted, and what is said of others."""

from __future__ import annotations

import pytest
import torch

from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError
from fishnets.graphs.labels import expect_outputs, label_loss, label_score, num_outputs, tasks_scored

NAN = float("nan")


def test_outputs_are_one_for_each_task_or_class() -> None:
    assert num_outputs({"train": torch.tensor([[0, 1], [1, 0]]), "test": torch.tensor([[0, 0]])}, "rocauc") == 2
    assert num_outputs({"train": torch.tensor([0, 1]), "test": torch.tensor([[4]]).flatten()}, "accuracy") == 5


@pytest.mark.parametrize("score", ["rocauc", "accuracy"])
def test_labels_may_be_boolean(score: str) -> None:
    label = torch.tensor([[True], [False], [True]])
    logits = torch.tensor([[1.0], [-1.0], [2.0]]) if score == "rocauc" else torch.tensor([[0.0, 1.0]] * 3)
    assert num_outputs({"train": label}, score) == logits.shape[1]  # type: ignore[arg-type]
    assert label_loss(logits, label, score).isfinite()  # type: ignore[arg-type]
    assert label_score(logits, label, score) == pytest.approx(1 if score == "rocauc" else 2 / 3)  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match='`score` is \'f1\' but "rocauc" or "accuracy" was expected'):
        num_outputs({}, "f1")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"Labels of the part 'train' have shape \(3,\) but \(n, tasks\); a single"):
        num_outputs({"train": torch.zeros(3)}, "rocauc")
    with pytest.raises(ShapeError, match=r"Labels of the part 'test' have shape \(3, 2\) but \(n,\) or \(n, 1\) was"):
        num_outputs({"test": torch.zeros(3, 2)}, "accuracy")
    with pytest.raises(DataError, match="Labels of the part 'valid' hold -1, 2 but 0, 1 or, where unknown, NaN were"):
        num_outputs({"valid": torch.tensor([[2], [-1], [0]])}, "rocauc")
    with pytest.raises(DataError, match=r"Labels of the part 'valid' hold 0\.5 but classes, counted from 0, were"):
        num_outputs({"valid": torch.tensor([0.5, 1.0])}, "accuracy")
    with pytest.raises(DataError, match="Labels of the part 'valid' hold nan but classes, counted from 0, were"):
        num_outputs({"valid": torch.tensor([NAN, NAN, 1.0])}, "accuracy")
    with pytest.raises(ShapeError, match=r"The network gives a tuple but a tensor of shape \(4, 1\) was expected"):
        expect_outputs((), 4, 1, "rocauc")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="No label is known in the part 'train' of the split"):
        num_outputs({"train": torch.tensor([[NAN]])}, "rocauc")
    with pytest.raises(DataError, match="No task has positives and negatives in the part 'test': nothing can be"):
        tasks_scored({"test": torch.tensor([[1], [1]])}, "rocauc")
    with pytest.raises(NonFiniteError, match="`logits` are not finite, so no class can be told from them"):
        label_score(torch.tensor([[NAN, 0.0]]), torch.tensor([0]), "accuracy")


@pytest.mark.parametrize(
    ("shape", "outputs", "score", "message"),
    [
        ((4, 2), 3, "rocauc", r"gives outputs of shape \(4, 2\) but the labels ask for \(4, 3\), one for each task\.$"),
        ((4, 4), 3, "rocauc", r"\(4, 4\) but the labels ask for \(4, 3\)"),
        ((4, 2), 3, "accuracy", r"\(4, 2\) but the labels ask for \(4, 3\), one for each class"),
        ((4,), 1, "rocauc", r"\(4,\) but the labels ask for \(4, 1\)"),
        ((9, 3), 3, "rocauc", r"\(9, 3\) but .* \(4, 3\).* A network for graphs pools their nodes: `Deep"),
    ],
)
def test_a_network_with_other_outputs_is_refused(shape, outputs, score, message):
    with pytest.raises(ShapeError, match=message):
        expect_outputs(torch.zeros(shape), 4, outputs, score, pooled=True)


def test_more_outputs_than_classes_are_accepted() -> None:
    expect_outputs(torch.zeros(4, 9), 4, 3, "accuracy")
