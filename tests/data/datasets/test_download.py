import hashlib
import random

import pytest

from fafed.data.datasets.base import Download
from fafed.data.datasets.download import fetch
from fafed.errors import DataError

CONTENT = random.Random(0).randbytes(1_000_000)
OTHER = random.Random(1).randbytes(1_000_000)


def file(*urls):
    return Download("f", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), urls)


class Calls(list):
    def __call__(self, done, total):
        self.append((done, total))


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "new" / "f"


def test_whole(server, target, calls, left):
    server.files["f"] = CONTENT
    fetch(file(f"{server.url}/f"), target, calls)
    assert target.read_bytes() == CONTENT
    assert left(target.parent) == ["f"]
    assert calls == sorted(calls)
    assert calls[-1] == (len(CONTENT), len(CONTENT))


def test_what_is_there_is_not_asked_for_again(server, target, calls):
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    fetch(file(f"{server.url}/f"), target, calls)
    assert server.asked == []
    assert calls == [(len(CONTENT), len(CONTENT))]


def test_broken_connections_are_resumed(server, target, calls):
    server.files["f"] = CONTENT
    server.breaks = [400_000, 300_000]
    fetch(file(f"{server.url}/f"), target, calls)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-", "bytes=700000-"]


def test_an_earlier_attempt_is_resumed(server, target, calls, left):
    server.files["f"] = CONTENT
    server.breaks = [250_000, 0]
    with pytest.raises(DataError, match="broke after 250000 of 1000000 bytes"):
        fetch(file(f"{server.url}/f"), target, calls)
    assert left(target.parent) == ["f.part"]
    fetch(file(f"{server.url}/f"), target, calls)
    assert target.read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=250000-"


def test_another_mirror_goes_on_where_the_first_broke(server, target, calls):
    server.files = {"f": CONTENT, "mirror": CONTENT}
    server.breaks = [600_000, 0]
    fetch(file(f"{server.url}/f", f"{server.url}/mirror"), target, calls)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=600000-", "bytes=600000-"]


@pytest.mark.parametrize("lengths", [True, False])
def test_server_that_ignores_range_starts_anew(server, target, calls, lengths):
    server.files["f"] = CONTENT
    server.ranges, server.lengths, server.breaks = False, lengths, [400_000]
    fetch(file(f"{server.url}/f"), target, calls)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-"]


def test_part_of_another_file_starts_anew(server, target, calls):
    server.files["f"] = CONTENT
    target.parent.mkdir()
    target.with_name("f.part").write_bytes(OTHER[:500_000])
    fetch(file(f"{server.url}/f"), target, calls)
    assert target.read_bytes() == CONTENT
    assert server.asked == ["bytes=500000-", None]


@pytest.mark.parametrize("size", [len(CONTENT), len(CONTENT) + 5])
def test_part_that_is_complete_but_wrong_starts_anew(server, target, calls, size):
    server.files["f"] = CONTENT
    target.parent.mkdir()
    target.with_name("f.part").write_bytes(bytes(size))
    fetch(file(f"{server.url}/f"), target, calls)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None]


def test_wrong_content_is_refused(server, target, calls, left):
    server.files["f"] = OTHER
    with pytest.raises(DataError) as caught:
        fetch(file(f"{server.url}/f"), target, calls)
    assert hashlib.sha256(CONTENT).hexdigest() in str(caught.value)
    assert hashlib.sha256(OTHER).hexdigest() in str(caught.value)
    assert left(target.parent) == []
    assert len(server.asked) == 1


def test_wrong_size_is_refused_and_costs_no_bytes_already_got(server, target, calls):
    server.files["f"] = CONTENT[:600_000]
    target.parent.mkdir()
    target.with_name("f.part").write_bytes(CONTENT[:500_000])
    with pytest.raises(DataError, match="expected 1000000 bytes, found 600000"):
        fetch(file(f"{server.url}/f"), target, calls)
    assert target.with_name("f.part").stat().st_size == 500_000
    server.files["f"] = b"<html>log in first</html>"
    with pytest.raises(DataError, match="HTTP 416"):
        fetch(file(f"{server.url}/f"), target, calls)
    server.ranges = False
    with pytest.raises(DataError, match="expected 1000000 bytes, found 25"):
        fetch(file(f"{server.url}/f"), target, calls)
    assert target.with_name("f.part").stat().st_size == 500_000


def test_not_found_goes_to_the_next_mirror(server, target, calls):
    server.files["mirror"] = CONTENT
    fetch(file(f"{server.url}/f", f"{server.url}/mirror"), target, calls)
    assert target.read_bytes() == CONTENT


def test_every_failure_is_named(server, target, calls):
    gone = "http://127.0.0.1:9/f"  # nobody listens there
    with pytest.raises(DataError) as caught:
        fetch(file(f"{server.url}/f", gone), target, calls)
    assert f"{server.url}/f: HTTP 404 Not Found" in str(caught.value)
    assert gone in str(caught.value)


def test_full_disk(server, target, calls):
    server.files["f"] = CONTENT
    target.parent.mkdir()
    try:
        target.with_name("f.part").symlink_to("/dev/full")
        target.with_name("f.part").open("ab").close()
    except OSError:
        pytest.skip("no /dev/full here")
    with pytest.raises(DataError, match="No space left on device"):
        fetch(file(f"{server.url}/f", f"{server.url}/mirror"), target, calls)
    assert len(server.asked) == 1  # no other mirror can help
    assert not target.exists()


def test_full_disk_in_the_middle_is_resumed_later(server, target, calls, small_files, left):
    server.files["f"] = CONTENT
    with small_files(300_000), pytest.raises(DataError, match="cannot write"):
        fetch(file(f"{server.url}/f"), target, calls)
    assert left(target.parent) == ["f.part"]
    fetch(file(f"{server.url}/f"), target, calls)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]
