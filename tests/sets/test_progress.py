"""The progress bar: on stderr, and only when asked for."""

from __future__ import annotations

import pytest
from tests.sets.helpers import QUICK, SIMULATOR, tiny


def test_progress_bar_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    tiny().fit(SIMULATOR, **QUICK, progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "20/20" in captured.err


def test_nothing_is_printed_unless_asked(capfd: pytest.CaptureFixture[str]) -> None:
    tiny().fit(SIMULATOR, **QUICK, progress=False)
    assert capfd.readouterr() == ("", "")
