"""Units of data and parameters, and the prior in them."""

from __future__ import annotations

import torch

from fishnets.sets.standards import Standards


def test_standards_shift_and_scale() -> None:
    numbers = [torch.tensor(values, dtype=torch.float64) for values in ([1.0, 2.0], [2.0, 4.0], [3.0], [0.5])]
    standards = Standards(*numbers, torch.eye(1), torch.zeros(1))
    assert standards.features(torch.tensor([[3.0, 4.0]])).tolist() == [[1.0, 0.5]]
    assert standards.features(torch.tensor([[3.0, 4.0]], dtype=torch.float64)).dtype == torch.float64
    assert standards.parameters(torch.tensor([[4.0]])).tolist() == [[2.0]]
