"""Every example runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter client itself
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook(path, tmp_path):
    """It runs twice in the same folder: the second time it resumes a finished run."""
    import nbformat
    from nbclient import NotebookClient

    for _ in range(2):
        notebook = nbformat.read(path, as_version=4)
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}})
        client.execute()
        outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
        assert "30/30" in str(outputs[1])  # progress, on a line that was replaced
        assert "━" in str(outputs[1])
        assert "FedAvg: round 30 of 30" in str(outputs[1])
        assert not any(one.output_type == "stream" for cell in outputs for one in cell)
    assert (tmp_path / "quickstart.safetensors").is_file()
