import gzip
import hashlib

import numpy as np
import pytest

from fafed.data.datasets import idx
from fafed.errors import DataError

ARRAY = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
PLAIN = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + bytes(range(24))


def write(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


def test_dump_is_the_format_byte_for_byte():
    assert idx.dump(ARRAY) == PLAIN
    assert idx.sha256(ARRAY) == hashlib.sha256(PLAIN).hexdigest()
    transposed = ARRAY.transpose(2, 1, 0)  # not contiguous
    assert idx.sha256(transposed) == hashlib.sha256(idx.dump(transposed)).hexdigest()


@pytest.mark.parametrize("content", [PLAIN, gzip.compress(PLAIN, mtime=0)], ids=["plain", "gzip"])
def test_read(tmp_path, content):
    found = idx.read(write(tmp_path, content), (2, 3, 4))
    assert np.array_equal(found, ARRAY)
    assert found.flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (b"\0\0\x0d\x01" + PLAIN[4:], "begins with 00 00 0d 01"),
        (PLAIN[:9], "inside its header"),
        (PLAIN[:-1], "expected 24 bytes of data, found 23"),
        (PLAIN + b"!", "bytes after its data"),
        (idx.header((2, 3, 5)) + PLAIN[16:], r"shape \(2, 3, 5\), expected \(2, 3, 4\)"),
        (idx.header((2**32 - 1,) * 3), "expected"),  # must not try to allocate that
        (gzip.compress(PLAIN, mtime=0)[:-9], "cannot read"),
        (gzip.compress(PLAIN, mtime=0) + b"!", "cannot read"),
        (
            gzip.compress(PLAIN, mtime=0)[:20] + b"!!!!" + gzip.compress(PLAIN, mtime=0)[24:],
            "cannot read",
        ),
    ],
)
def test_damage_is_refused(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        idx.read(write(tmp_path, content), (2, 3, 4))


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        idx.read(tmp_path / "nothing", (1,))
