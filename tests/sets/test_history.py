"""The record of a training run, in words and as plain values."""

from __future__ import annotations

from fishnets.sets import History


def test_history_in_words() -> None:
    history = History(
        best_step=[30, 70], best_loss=[-1.0, -2.5], clipped=[3, 4], num_steps=100, num_data=32_000, seconds=2.0,
        stopped="patience",
    )  # fmt: skip
    assert str(history) == (
        "100 steps, 32,000 data in 2 s (16,000 a second); best validation loss -2.5000 at step 70; gradients clipped "
        "at 7 of 200 member steps; patience"
    )
    assert "0 steps" in str(History())
