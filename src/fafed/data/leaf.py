"""FEMNIST and Shakespeare from files in LEAF's JSON format (https://leaf.cmu.edu).

    [data]
    function = "fafed.data.leaf:femnist"
    options = { folder = "leaf/data/femnist/data" }

The folder has two folders, `train` and `test`, each with .json files:

    {"users": ["a", ...], "user_data": {"a": {"x": [...], "y": [...]}, ...}}

Each user is a client, in the order of the files' names and of the users in a file. The test set has
the test examples of these users, one after another. LEAF's own scripts write these files
(`preprocess.sh`). Without `folder` it is `femnist` or `shakespeare` in the folder of datasets: that
is FAFED_DATA or the user's cache folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fafed.data.datasets.cache import reading, root
from fafed.errors import ConfigError, DataError

Pair = tuple[Tensor, Tensor]  # inputs, targets
Convert = Callable[[Any, Any], Pair]

CLASSES = 62  # digits, capital and small letters
SIDE = 28
WINDOW = 80  # characters that one example of Shakespeare has
# the characters that LEAF's Shakespeare has, in LEAF's order: 80
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
PLACES = {character: place for place, character in enumerate(CHARACTERS)}


def femnist(folder: str | None = None, clients: int | None = None) -> tuple[list[Pair], Pair]:
    """Handwritten characters (n, 1, 28, 28) and their classes. Each writer is a client.

    `clients`: only so many, the first ones."""
    return _read("femnist", folder, clients, _images)


def shakespeare(folder: str | None = None, clients: int | None = None) -> tuple[list[Pair], Pair]:
    """80 characters (n, 80), and the next one. Each speaking role is a client.

    `clients`: only so many, the first ones."""
    return _read("shakespeare", folder, clients, _characters)


def _images(x: Any, y: Any) -> Pair:
    images, classes = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)
    if images.ndim != 2 or images.shape[1] != SIDE * SIDE:
        raise ValueError(f"an image must be {SIDE * SIDE} numbers, got {tuple(images.shape[1:])}")
    if classes.ndim != 1 or not ((classes >= 0) & (classes < CLASSES)).all():
        raise ValueError(f"a class must be an integer from 0 to {CLASSES - 1}")
    return images.view(-1, 1, SIDE, SIDE), classes


def _characters(x: Any, y: Any) -> Pair:
    for text, length in ((x, WINDOW), (y, 1)):
        for part in text:
            if not isinstance(part, str) or len(part) != length:
                raise ValueError(f"expected a text of {length} characters, got {part!r}")
            unknown = sorted(set(part) - set(PLACES))
            if unknown:
                raise ValueError(f"{unknown[0]!r} is not among the {len(PLACES)} characters")
    inputs = torch.tensor([[PLACES[c] for c in part] for part in x], dtype=torch.int64)
    return inputs, torch.tensor([PLACES[c] for c in y], dtype=torch.int64)


def _read(
    name: str, folder: str | None, clients: int | None, convert: Convert
) -> tuple[list[Pair], Pair]:
    if clients is not None and (isinstance(clients, bool) or clients < 1):
        raise ConfigError(f"{name}: clients must be a positive integer, got {clients!r}")
    where = root() / name if folder is None else Path(folder).expanduser()
    train: dict[str, Pair] = {}
    for user, data, path in _users(name, where / "train", clients):
        if user in train:
            raise DataError(f"{path}: user {user!r} is in {where / 'train'} twice; keep one")
        train[user] = _converted(data, user, path, convert)
    test = [
        _converted(data, user, path, convert)
        for user, data, path in _users(name, where / "test", None)
        if user in train
    ]
    if not test:
        raise DataError(
            f"{where / 'test'} has no example of the {len(train)} users of {where / 'train'}: "
            "split by samples, `preprocess.sh -t sample`"
        )
    inputs, targets = zip(*test, strict=True)
    return list(train.values()), (torch.cat(inputs), torch.cat(targets))


def _users(name: str, folder: Path, most: int | None) -> Iterator[tuple[str, Any, Path]]:
    """(user, their data, file)."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(
            f"no .json file of {name} in {folder}: set folder to the one that has LEAF's train and "
            "test, which its preprocess.sh writes (docs/data.md)"
        )
    found = 0
    for path in paths:
        content = _content(path)
        for user in content["users"]:
            if found == most:
                return
            if user not in content["user_data"]:
                raise DataError(f"{path}: user_data lacks user {user!r}; get a fresh copy of it")
            yield user, content["user_data"][user], path
            found += 1


def _content(path: Path) -> dict[str, Any]:
    try:
        with reading(path):
            content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}; get a fresh copy of it") from error
    wanted = {"users": list, "user_data": dict}
    if not isinstance(content, dict) or any(
        not isinstance(content.get(key), kind) for key, kind in wanted.items()
    ):
        raise DataError(f"{path} is not in LEAF's format: it needs a list users and user_data")
    return content


def _converted(data: Any, user: str, path: Path, convert: Convert) -> Pair:
    try:
        x, y = data["x"], data["y"]
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs and {len(y)} targets")
        if not x:
            raise ValueError("no examples")
        return convert(x, y)
    except (KeyError, TypeError, ValueError) as error:
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}: user {user!r}: {text}; get a fresh copy of it, or leave the user out"
        ) from error
