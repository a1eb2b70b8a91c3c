"""The audit file: no line is lost, and none can be changed unseen."""

from __future__ import annotations

import json
import os
import resource
import stat
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fafed import FafedError
from fafed.cli import app
from fafed.files import Damaged
from fafed.silos.audit import Audit, verify
from fafed.silos.messages import ExchangeId


def note(path, *numbers, who="server"):
    audit = Audit(path, who)
    for number in numbers:
        audit.note("sent", "a", "request", ExchangeId("run", number), 10, "digest")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def lines(path):
    return path.read_bytes().splitlines(keepends=True)


def test_the_chain_holds_and_ends_with_what_is_printed(path):
    note(path, 1, 2)
    note(path, 3)
    count, head = verify(path)
    assert count == 3
    assert [json.loads(line)["round"] for line in lines(path)] == [1, 2, 3]
    done = CliRunner().invoke(app, ["silos", "audit", str(path)])
    assert done.exit_code == 0
    assert f"3 lines, whole; the hash of the last: {head}" in done.stdout
    note(path, 4)
    assert verify(path, head)[0] == 4


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (lambda x: [x[0], x[1].replace(b'"bytes": 10', b'"bytes": 11'), *x[2:]], 3),
        (lambda x: [x[0], *x[2:]], 2),
        (lambda x: [x[0], x[2], x[1], x[3]], 2),
        (lambda x: [*x[:2], b'{"round": 9}\n', *x[2:]], 3),
        (lambda x: [*x[:2], b"\0\0\0\n", *x[2:]], 3),
        (lambda x: [*x, b"more\n"], 5),
        (lambda x: [*x[:2], x[1], *x[2:]], 3),
    ],
)
def test_the_first_broken_line_is_named(path, change, at):
    note(path, 1, 2, 3, 4)
    path.write_bytes(b"".join(change(lines(path))))
    with pytest.raises(Damaged, match=f"{path} is broken at line {at}: "):
        verify(path)


def test_missing_lines_at_the_end_show_against_a_hash_that_was_noted(path):
    note(path, 1, 2, 3)
    _, head = verify(path)
    path.write_bytes(b"".join(lines(path)[:2]))
    assert verify(path)[0] == 2
    with pytest.raises(Damaged, match="lines are missing at its end"):
        verify(path, head)


def test_a_line_that_a_crash_cut_short_stays_and_is_told(path, caplog):
    note(path, 1, 2)
    path.write_bytes(path.read_bytes()[:-20])
    torn = lines(path)[1]
    assert verify(path)[0] == 1
    assert "a crash has cut its last line short" in caplog.text
    note(path, 3)
    assert lines(path)[1] == torn + b"\n"
    assert json.loads(lines(path)[2])["torn"] is True
    assert verify(path)[0] == 3
    path.write_bytes(path.read_bytes().replace(torn, torn + b" "))
    with pytest.raises(Damaged, match="line 3"):
        verify(path)


def test_lines_from_before_there_was_a_chain_go_on(path):
    old = b'{"round": 1, "sha256": "x"}\n' * 300  # more than is read at once
    path.write_bytes(old)
    path.chmod(0o644)
    note(path, 2, 3)
    assert verify(path)[0] == 302
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(path.read_bytes().replace(old[:28] * 2, old[:28] + b'{"round": 7}\n', 1))
    assert verify(path)[0] == 302  # only the last of them is held
    path.write_bytes(path.read_bytes().replace(b'"x"}\n{"time"', b'"y"}\n{"time"'))
    with pytest.raises(Damaged, match="line 301"):
        verify(path)


def test_several_writers_make_one_chain(path):
    """Each opens the file itself, as a process of its own would: the lock is the file's."""
    writers = [
        threading.Thread(target=note, args=(path, *range(50)), kwargs={"who": str(i)})
        for i in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert verify(path)[0] == 150


def test_a_line_is_written_as_a_whole_or_refused(path):
    """Files may not grow beyond a limit: the kernel takes a part of the line, then nothing."""
    note(path, 1)
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, before[1]))
    try:
        with pytest.raises(FafedError, match=r"could not be written.*Nothing is sent unrecorded"):
            note(path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == size
    note(path, 2)
    assert verify(path)[0] == 2


def test_a_short_write_loses_nothing(path, monkeypatch):
    """The kernel may take less than it is given, without an error."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data[:7])))
    note(path, 1, 2)
    monkeypatch.undo()
    assert verify(path)[0] == 2


def test_no_file_is_an_error_of_ours(tmp_path):
    with pytest.raises(FafedError, match="cannot be read"):
        verify(Path(tmp_path / "none"))
