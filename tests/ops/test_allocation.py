"""Memory that is freed and kept, in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from fishnets.ops.allocation import keep_freed_memory

def pages_taken():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plainly, kept = pages_taken(), keep_freed_memory()
pages_taken()
print(kept, plainly, pages_taken())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only the C library of Linux can be asked to")
def test_freed_memory_is_used_again_without_new_pages():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, before, after = done.stdout.split()
    if platform.libc_ver()[0] == "glibc":
        assert kept == "True"
        assert int(after) < int(before) / 10


def test_systems_without_it_say_so(monkeypatch: pytest.MonkeyPatch):
    from fishnets.ops.allocation import keep_freed_memory

    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
