"""Labels of the parts of a split: which are accepted, and the loss and the score they give.

Labels of tasks are 0, 1 or, where unknown, NaN, scored by the area under the ROC curve (``"rocauc"``); classes are
numbers from 0, scored by how many are right (``"accuracy"``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError, describe_rows
from fishnets.graphs.metrics import roc_auc, tasks_with_both

__all__ = ["Score", "expect_outputs", "label_loss", "label_score", "num_outputs", "tasks_scored"]

Score = Literal["rocauc", "accuracy"]


def num_outputs(labels: Mapping[str, Tensor], score: Score) -> int:
    """How many outputs labels ask of a network: one for each task, or for each class.

    Args:
        labels: Labels by the part of the split, shape (n, tasks); of classes (n,) or (n, 1).
        score: What they are.

    Example:
        >>> num_outputs({"train": torch.tensor([0, 2, 1]), "test": torch.tensor([1])}, "accuracy")
        3
    """
    if score not in ("rocauc", "accuracy"):
        raise ConfigError(f'`score` is {score!r} but "rocauc" or "accuracy" was expected.')
    for part, label in labels.items():
        _expect_labels(part, label, score)
    if score == "accuracy":
        return 1 + max(int(label.max()) for label in labels.values())
    return labels["train"].shape[1]


def tasks_scored(labels: Mapping[str, Tensor], score: Score) -> dict[str, int]:
    """Number of tasks with positives and negatives in each part of a split, which scores count; classes are no tasks.

    Example:
        >>> tasks_scored({"test": torch.tensor([[0, 1], [1, 1]])}, "rocauc")  # the second has no negative
        {'test': 1}
    """
    count = {} if score == "accuracy" else {part: int(tasks_with_both(label).sum()) for part, label in labels.items()}
    for part, tasks in count.items():
        if not tasks:
            done = "learned from" if part == "train" else "scored by"
            raise DataError(f"No task has positives and negatives in the part {part!r}: nothing can be {done} it.")
    return count


def expect_outputs(logits: Tensor, rows: int, outputs: int, score: Score, pooled: bool = False) -> None:
    """Raises :class:`ShapeError` unless a network gave each row an output for each task, or for each class at least."""
    if not isinstance(logits, Tensor):
        given = type(logits).__name__
        raise ShapeError(f"The network gives a {given} but a tensor of shape ({rows}, {outputs}) was expected.")
    fits = logits.ndim == 2 and len(logits) == rows
    if not fits or not (logits.shape[1] == outputs if score == "rocauc" else logits.shape[1] >= outputs):
        what = "task" if score == "rocauc" else "class"
        hint = ' A network for graphs pools their nodes: `DeeperGCN(..., pool="mean")`.' if pooled and not fits else ""
        raise ShapeError(
            f"The network gives outputs of shape {tuple(logits.shape)} but the labels ask for ({rows}, {outputs}), one "
            f"for each {what}.{hint}"
        )


def label_loss(logits: Tensor, label: Tensor, score: Score) -> Tensor:
    """Mean loss: cross-entropy of classes, or of labels that are known, task by task.

    Example:
        >>> label_loss(torch.zeros(2, 1), torch.tensor([[1.0], [torch.nan]]), "rocauc")
        tensor(0.6931)
    """
    if score == "accuracy":
        return cross_entropy(logits, label.flatten().long())
    known = ~label.isnan()  # a share of the loss each: rows taken out by a mask would wait for the device
    return binary_cross_entropy_with_logits(
        logits, label.nan_to_num().to(logits), weight=known.to(logits) * (known.numel() / known.sum().clamp(min=1))
    )


def label_score(logits: Tensor, label: Tensor, score: Score) -> float:
    """Mean area under the ROC curve over tasks, or the share of classes that are right.

    Example:
        >>> label_score(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1, 1]), "accuracy")
        0.5
    """
    if score == "accuracy":
        if not bool(logits.isfinite().all()):
            raise NonFiniteError("`logits` are not finite, so no class can be told from them.")
        return float((logits.argmax(1) == label.flatten()).double().mean())
    return float(roc_auc(logits, label))


def _expect_labels(part: str, label: Tensor, score: Score) -> None:
    """Raises unless labels of a part are as this module says, and some of them are known."""
    label = label.long() if label.dtype == torch.bool else label
    if score == "accuracy":
        strange, expected = label[~((label >= 0) & (label == label.round()))], "classes, counted from 0,"
        shapes, fits = "(n,) or (n, 1)", label.ndim == 1 or label.shape[1:] == (1,)
    else:
        strange, expected = label[~((label == 0) | (label == 1) | label.isnan())], "0, 1 or, where unknown, NaN"
        shapes, fits = "(n, tasks); a single task may be given by `y.unsqueeze(1)`", label.ndim == 2
    if not fits:
        raise ShapeError(f"Labels of the part {part!r} have shape {tuple(label.shape)} but {shapes} was expected.")
    if strange.numel():
        found = describe_rows(list(dict.fromkeys(map(str, strange.unique().tolist()))))  # NaN is not equal to itself
        raise DataError(f"Labels of the part {part!r} hold {found} but {expected} were expected.")
    if bool(label.isnan().all()):
        raise DataError(f"No label is known in the part {part!r} of the split.")
