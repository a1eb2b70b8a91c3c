"""Compile the C files for this machine, once. The library stays in the cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import platformdirs
import torch

FOLDER = Path(__file__).parent
SOURCES, HEADERS = sorted(FOLDER.glob("*.c")), sorted(FOLDER.glob("*.h"))
FLAGS = [
    *("-std=gnu11", "-O2", "-ftree-vectorize", "-fno-math-errno", "-fno-trapping-math"),
    *("-march=native", "-shared", "-fPIC"),
]
DOUBLE = {torch.float32: False, torch.float64: True}

_lock = threading.Lock()
_found: dict[tuple[str, torch.dtype], ctypes.CDLL | str] = {}


class NoCompiler(Exception):
    """There is no library. The message says why."""


def library(dtype: torch.dtype) -> ctypes.CDLL:
    """The library for numbers of this type. The first call on a machine takes a second or two."""
    compiler = os.environ.get("CC") or "cc"
    with _lock:
        if (compiler, dtype) not in _found:
            try:
                _found[compiler, dtype] = _library(shlex.split(compiler), DOUBLE[dtype])
            except (OSError, subprocess.SubprocessError) as cause:
                _found[compiler, dtype] = _reason(compiler, cause)
        found = _found[compiler, dtype]
    if isinstance(found, str):
        raise NoCompiler(found)
    return found


def available(dtype: torch.dtype) -> bool:
    try:
        library(dtype)
    except NoCompiler:
        return False
    return True


def _library(compiler: list[str], double: bool) -> ctypes.CDLL:
    flags = [*FLAGS, *(["-DDOUBLE"] if double else [])]
    # the compiler's description of the machine: different machines may share a home folder
    machine = _call([*compiler, *flags, "-dM", "-E", "-x", "c", os.devnull])
    code = b"".join(file.read_bytes() for file in (*HEADERS, *SOURCES))
    key = hashlib.sha256(machine + code + " ".join(flags).encode()).hexdigest()
    folder = Path(platformdirs.user_cache_dir("fafed"), "native")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # the cache folder is not writable: compile for this process alone
        folder = Path(tempfile.mkdtemp(prefix="fafed-"))
    whole = [path for path in folder.glob(f"{key[:32]}-*.so") if _whole(path)]
    path = whole[0] if whole else _compiled(compiler, flags, folder, key[:32])
    return _typed(ctypes.CDLL(str(path)))


def _compiled(compiler: list[str], flags: list[str], folder: Path, key: str) -> Path:
    """Compile a new library. Its name contains a hash of its content."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        new = Path(scratch, "fafed.so")
        _call([*compiler, *flags, *map(str, SOURCES), "-o", str(new), "-lm"])
        path = folder / f"{key}-{_digest(new)}.so"
        _to_disk(new)
        new.replace(path)
    return path


def _to_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _whole(path: Path) -> bool:
    """Whether a library is undamaged. A damaged one is removed: a full disk or a power cut may have
    cut it short, and loading it could end the process."""
    try:
        if path.stem.endswith(f"-{_digest(path)}"):
            return True
        path.unlink()
    except OSError:
        pass
    return False


def _typed(lib: ctypes.CDLL) -> ctypes.CDLL:
    pointer, small, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    rows: list[Any] = [pointer, size]
    lib.room.argtypes = [pointer, small, size]
    lib.room.restype = size
    lib.gradients.argtypes = [pointer, small, *[size] * 4, pointer, size, *[pointer] * 7]
    lib.gradients.restype = size
    lib.clipped.argtypes = [pointer, small, *[size] * 5, ctypes.c_double, *[pointer] * 9]
    lib.clipped.restype = size
    lib.outputs.argtypes = [pointer, small, size, size, *[pointer] * 4]
    lib.outputs.restype = None
    lib.steps_room.argtypes = [pointer, small, size, small]
    lib.steps_room.restype = size
    both: list[Any] = [pointer, small, *[size] * 4, *[pointer] * 4]
    lib.sgd_steps.argtypes = [*both, *rows * 2, *[pointer] * 3]
    lib.sgd_steps.restype = size
    lib.storm_steps.argtypes = [*both, pointer, ctypes.c_double, pointer, *rows * 5, *[pointer] * 5]
    lib.storm_steps.restype = size
    lib.storm_estimate.argtypes = [size, size, *rows * 4, pointer]
    lib.storm_estimate.restype = None
    lib.ema_of_squares.argtypes = [size, size, ctypes.c_double, *rows * 2, pointer]
    lib.ema_of_squares.restype = None
    lib.added.argtypes = [size, size, pointer, *rows, pointer]
    lib.added.restype = None
    lib.panels.argtypes = [size]
    lib.panels.restype = size
    lib.decode.argtypes = [*[size] * 4, *[pointer] * 7]
    lib.decode.restype = None
    lib.decode_back.argtypes = [*[size] * 4, *[pointer] * 8]
    lib.decode_back.restype = None
    return lib


def _call(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=300).stdout


def _reason(compiler: str, cause: Exception) -> str:
    said = getattr(cause, "stderr", None) or str(cause).encode()
    first = [*said.decode(errors="replace").strip().splitlines(), ""][0]
    return f"{compiler!r} does not compile C on this machine: {first}"
