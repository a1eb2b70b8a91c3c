"""Power cuts of a real file system: ext4 in a file, copied while a run writes into it.

What the copy holds is what the disk had been given at that moment; its journal is replayed when it
is mounted. Needs the right to mount, and is skipped without it.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from small import experiment, write_data

from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir

pytestmark = pytest.mark.slow

RUN = """
import sys
from pathlib import Path
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
place = RunDir(Path(sys.argv[2]))
execute(Experiment.read(sys.argv[1]), place, lambda record: print(record.round, flush=True))
"""


def sh(*words):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)


@pytest.fixture
def mounted(tmp_path):
    """Mounts an image; all are unmounted at the end."""
    folders = []

    def mount(image):
        folder = tmp_path / f"mount-{len(folders)}"
        folder.mkdir()
        if sh("mount", "-o", "loop", image, folder).returncode:
            pytest.skip("mounting an image is not allowed here")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        sh("umount", "-l", folder)


def numbers(place):
    return [{**record.to_dict(), "seconds": 0} for record in place.records()]


def test_power_cuts_of_ext4(tmp_path, mounted):
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not here")
    write_data(tmp_path / "data")
    e = Experiment.from_dict(experiment(tmp_path / "data", rounds=2000, eval_every=500))
    toml = tmp_path / "small.toml"
    toml.write_text(e.to_toml())
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(2**26)
    assert sh("mkfs.ext4", "-q", image).returncode == 0
    place = RunDir(mounted(image) / "run")
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(toml), str(place.path)], stdout=pipe, text=True
    )
    copies, rng, told = [], random.Random(0), 0
    while process.poll() is None and len(copies) < 10:
        end = time.monotonic() + rng.uniform(0.1, 0.6)
        while time.monotonic() < end and (line := process.stdout.readline()):
            told = int(line)
        process.send_signal(signal.SIGSTOP)
        copies.append(shutil.copyfile(image, tmp_path / f"copy-{len(copies)}"))
        process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()
    assert told > 20
    assert len(copies) == 10
    calm = RunDir(tmp_path / "calm")
    reached = []
    for copy in copies:
        there = RunDir(mounted(copy) / "run")
        began = []

        def look(record, began=began):
            began.append(record.round)
            if len(began) == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            execute(e, there, look)
        reached.append((began[0], numbers(there)))
    longest = max(len(found) for _, found in reached)
    execute(e.changed(rounds=longest), calm)
    right = numbers(calm)
    for _, found in reached:
        ours = [{**row, "test": {}, "train": {}} for row in found]
        assert ours == [{**row, "test": {}, "train": {}} for row in right[: len(found)]]
    assert reached[-1][0] > 1, "nothing was on the disk"
