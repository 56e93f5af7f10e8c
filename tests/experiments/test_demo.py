"""The demonstration: merging changes nothing, and the page says what was found."""

from __future__ import annotations

from fishnets.experiments import demo


def test_the_demo_reports_what_it_found() -> None:
    found = demo.run(demo.SMOKE, progress=False)
    assert found.merge_difference < 1e-6
    page = demo.report(found)
    for text in ("Efficiency", "exact estimate", "Merging", "| 50 |", "| 200 |"):
        assert text in page
    assert found.metrics["merge-difference"].value == found.merge_difference
