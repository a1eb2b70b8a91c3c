"""What becomes of freed memory, in a process of its own: the settings last until its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path
import torch
from fafed.kernels import malloc

malloc.LIMITS = (Path(sys.argv[1]),)
print(malloc.keep_freed_memory())
tensors = [torch.ones(2**20) for _ in range(100)]
last = tensors.pop()
del tensors
print(malloc.resident() >> 20)
malloc.return_memory()
print(malloc.resident() >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is left to the system")
@pytest.mark.parametrize(
    ("limit", "stays"), [("max", True), (str(2**62), True), (str(2**28), False)]
)
def test_freed_memory_stays_unless_the_container_gets_short_of_it(tmp_path, limit, stays):
    file = tmp_path / "memory.max"
    file.write_text(f"{limit}\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, file], capture_output=True, text=True, check=True
    )
    kept, before, after = done.stdout.split()
    if kept == "False":
        pytest.skip("another C library")
    assert int(before) > 400
    assert int(after) > 400 if stays else int(after) < 400
