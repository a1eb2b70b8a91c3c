"""The C code under sanitizers, on random networks: no number is read or written where it should not
be, and nothing is done that C leaves undefined.

FAFED_FUZZ_CASES is the number of cases for each build, FAFED_FUZZ_FIRST the seed of the first one.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src" / "fafed" / "kernels"
CASES = int(os.environ.get("FAFED_FUZZ_CASES", "250"))
FIRST = int(os.environ.get("FAFED_FUZZ_FIRST", "0"))
FLAGS = [
    *("-std=gnu11", "-O1", "-g", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra"),
    *("-Werror", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
    *("-fno-omit-frame-pointer", "-DPOISON"),
]
BUILDS = {"float": ["-march=native"], "double": ["-march=native", "-DDOUBLE"]}
if platform.machine() in ("x86_64", "AMD64"):  # other lengths of vectors
    BUILDS |= {"float, 32 bytes": ["-mavx2", "-mfma"], "double, 16 bytes": ["-DDOUBLE"]}


def compiled(flags, sources, program):
    compiler = shlex.split(os.environ.get("CC") or "cc")
    command = [*compiler, *FLAGS, *flags, *map(str, sources), "-o", str(program), "-lm"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module", autouse=True)
def _needs_sanitizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("try")
    source = folder / "try.c"
    source.write_text("int main(void) { return 0; }\n")
    try:
        tried = compiled([], [source], folder / "try")
    except OSError as cause:
        pytest.skip(f"no C compiler: {cause}")
    if tried.returncode:
        pytest.skip(f"a C compiler without sanitizers: {tried.stderr}")


@pytest.mark.parametrize("build", BUILDS)
def test_random_networks(build, tmp_path):
    program, seed = tmp_path / "fuzz", tmp_path / "seed.txt"
    sources = [*sorted(SOURCES.glob("*.c")), HERE / "fuzz.c"]
    made = compiled([*BUILDS[build], f"-I{SOURCES}"], sources, program)
    assert made.returncode == 0, made.stderr
    fuzz = subprocess.run(
        [program, str(FIRST), str(CASES), seed], capture_output=True, text=True, check=False
    )
    assert fuzz.returncode == 0, (
        f"case {seed.read_text().strip()} failed; to repeat it: FAFED_FUZZ_CASES=1 "
        f"FAFED_FUZZ_FIRST={seed.read_text().strip()} pytest -m slow {__file__}\n{fuzz.stderr}"
    )
    assert seed.read_text().strip() == str(FIRST + CASES - 1)
