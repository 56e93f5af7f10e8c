r"""How well scores rank positives above negatives: the area under the ROC curve, as the OGB leaderboards measure it.

For one task with positives :math:`P` and negatives :math:`N` the area is the share of pairs in the right order,

.. math:: \mathrm{AUC} = \frac{1}{|P|\,|N|} \sum_{i \in P} \sum_{j \in N}
          \Big( [s_j < s_i] + \tfrac12 [s_j = s_i] \Big) ,

where a tie counts half (Mann and Whitney 1947). One sort gives all counts, and whole numbers keep them exact.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fishnets.errors import DataError, NonFiniteError, ShapeError, describe_rows

__all__ = ["roc_auc", "tasks_with_both"]


def roc_auc(score: Tensor, label: Tensor) -> Tensor:
    """Mean area under the ROC curve over the tasks that have positives and negatives.

    Args:
        score: Scores, logits or probabilities, larger for the positive class, shape (n, tasks) or, for one task, (n,).
        label: 1 for positives, 0 for negatives, NaN where unknown, which is left out; the shape of ``score``.

    Returns:
        The mean area, float64, a scalar on the device of ``score``. A task with one class only has no area and does
        not count.

    Example:
        >>> score = torch.tensor([[0.1, 3.0], [0.4, 1.0], [0.4, 2.0], [0.8, 0.0]])
        >>> label = torch.tensor([[0, 1], [0, 1], [1, 1], [1, 1]])
        >>> roc_auc(score, label)  # one tie among four pairs; the second task has no negatives
        tensor(0.8750, dtype=torch.float64)
    """
    score, positive, negative = _checked(score, label)
    num_pairs = positive.sum(1) * negative.sum(1)
    scored = num_pairs > 0
    if not scored.any():
        raise DataError(
            f"None of the {len(scored)} tasks has both positives and negatives, so the area under the ROC curve is not "
            "defined."
        )
    ordered, order = score[scored].sort(dim=1)
    below = pad(negative[scored].gather(1, order).cumsum(1), (1, 0))  # (tasks, n + 1): negatives among the first k
    lower = below.gather(1, torch.searchsorted(ordered, ordered))
    lower_or_equal = below.gather(1, torch.searchsorted(ordered, ordered, right=True))
    twice = (positive[scored].gather(1, order) * (lower + lower_or_equal)).sum(1)
    return (twice.double() / (2 * num_pairs[scored]).double()).mean()


def tasks_with_both(label: Tensor) -> Tensor:
    """Which tasks have positives and negatives, so that their area is defined, shape (tasks,), of labels (n, tasks).

    Example:
        >>> tasks_with_both(torch.tensor([[0, 1], [1, 1]])).tolist()
        [True, False]
    """
    return (label == 1).any(0) & (label == 0).any(0)


def _checked(score: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores in float64, and positives and negatives as 0 and 1 in int64, each of shape (tasks, n)."""
    if score.shape != label.shape or score.ndim not in (1, 2):
        raise ShapeError(
            f"`score` has shape {tuple(score.shape)} and `label` {tuple(label.shape)} but the same shape, (n, tasks) "
            "or (n,), was expected of both."
        )
    if score.ndim == 1:
        score, label = score.unsqueeze(1), label.unsqueeze(1)
    values, classes = score.detach().to(torch.float64).mT.contiguous(), label.to(score.device).mT
    positive, negative, unknown = classes == 1, classes == 0, classes.isnan()
    strange = ~(positive | negative | unknown)
    if strange.any():
        found = describe_rows(classes[strange].unique().tolist())
        raise DataError(f"`label` holds {found} but 0, 1 or, where unknown, NaN was expected.")
    if (values.isnan() & ~unknown).any():
        rows = (values.isnan() & ~unknown).any(0).nonzero().flatten().tolist()
        raise NonFiniteError(f"`score` is NaN in rows {describe_rows(rows)}, which cannot be ranked.")
    return values.masked_fill(unknown, 0.0), positive.long(), negative.long()
