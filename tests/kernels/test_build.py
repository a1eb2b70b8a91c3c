"""The compiled library in the cache: used as it was made, or made again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest
import torch

from fafed.kernels.build import available

pytestmark = pytest.mark.skipif(not available(torch.float64), reason="needs a C compiler")

CHILD = """
import torch
from torch import nn
from torch.nn import functional as F
from fafed.kernels.network import recognised
module = nn.Sequential(nn.Linear(2, 2, bias=False)).double()
known = recognised(module, F.cross_entropy)
print(known.outputs(torch.eye(2).double().flatten(), torch.ones(1, 2).double()).tolist())
"""


def test_a_library_that_was_cut_short_is_made_again(tmp_path):
    """In a process of its own: to load such a file ends it."""
    cache = tmp_path / "fafed" / "native"
    cache.mkdir(parents=True)
    for path in Path(platformdirs.user_cache_dir("fafed"), "native").glob("*.so"):
        whole = path.read_bytes()
        (cache / path.name).write_bytes(whole[: len(whole) // 2])
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "[[1.0, 1.0]]"
