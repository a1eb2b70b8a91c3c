"""A virtual environment for each competitor, made once below .bench/ and used again."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".bench" / "environments"
CONSTRAINTS = Path(__file__).parent / "constraints.txt"
OWN = "fafed"  # the environment that runs the benchmark
_MODELS = ("transformers", "peft")  # of the large jobs
REQUIREMENTS = {
    "pfl": ("pfl[pytorch]==0.6.0", "torch", *_MODELS),
    "flower": ("flwr[simulation]==1.41.0", "torch", *_MODELS),
    "flare": ("nvflare==2.9.0", "torch"),
    "fedlab": ("fedlab==1.3.0", "torch"),
    "jax": ("fedjax==0.0.17", "jax==0.10.2"),
}
PACKAGES = {  # whose versions the page shows
    OWN: ("fafed", "torch"),
    "pfl": ("pfl", "torch"),
    "flower": ("flwr", "torch"),
    "flare": ("nvflare", "torch"),
    "fedlab": ("fedlab", "torch"),
    "jax": ("fedjax", "jax"),
}


class NotInstalled(Exception):
    """A competitor that pip could not install here."""


def python(name: str) -> Path:
    """The interpreter of an environment, which is made if need be."""
    if name == OWN:
        return Path(sys.executable)
    folder = HOME / name
    interpreter = folder / "bin" / "python"
    wanted = "\n".join([*REQUIREMENTS[name], CONSTRAINTS.read_text()])
    stamp = folder / "installed.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return interpreter
    print(f"making the environment of {name}", flush=True)
    if not interpreter.exists():
        venv.create(folder, with_pip=True)
    pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*map(str, pip), "-c", str(CONSTRAINTS), *REQUIREMENTS[name]],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(
            f"pip cannot install {REQUIREMENTS[name][0]}: "
            f"{reason[-1] if reason else f'exit code {done.returncode}'}; "
            "see that pip works, then `python -m studies.performance setup`"
        )
    stamp.write_text(wanted)
    return interpreter


def versions(name: str) -> dict[str, str]:
    """The versions of the competitor's package and of what computes for it."""
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({p: version(p) for p in sys.argv[1:]}))"
    )
    command = [str(python(name)), "-c", code, *PACKAGES[name]]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(found.stdout))
