"""Every Python example of the README and the docs runs, in order, one page at a time."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert blocks, f"{page.name} has no example"
    names: dict[str, object] = {}
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        # layers of torch draw their first weights from the global generator
        with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
            for block in blocks:
                exec(compile(block, page.name, "exec"), names)
    finally:
        os.chdir(before)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
