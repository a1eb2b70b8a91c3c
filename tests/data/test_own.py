import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch.utils.data import Dataset, TensorDataset

from fafed import data
from fafed.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 3)), np.arange(6)


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.tensor([float(i), 0.0, 0.0]), i * i


# --- functions of the user ---------------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of the user's, which returns `result`."""

    def write(result=None, source="def load():\n    return result\n"):
        (tmp_path / "users_module.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "users_module", raising=False)
        __import__("users_module").result = result

    yield write
    sys.modules.pop("users_module", None)


def test_function(module):
    test = TensorDataset(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32))
    module(([(X, Y), [X[:2], Y[:2]], Squares()], test))
    own = data.from_function("users_module:load")
    assert [len(inputs) for inputs, _ in own.clients[:2]] == [6, 2]
    for inputs, targets in [*own.clients[:2], own.test]:
        assert inputs.dtype == torch.float32
        assert targets.dtype == torch.int64
    assert isinstance(own.clients[2], Squares)  # its items are read when a batch needs them
    assert np.allclose(own.clients[0][0], X)


def test_arrays_that_torch_does_not_like(module):
    frozen = X.copy()
    frozen.flags.writeable = False
    module(([(frozen, Y.astype(">i4"))], None))
    ((inputs, targets),), _ = data.from_function("users_module:load")
    assert np.allclose(inputs, X)
    assert np.array_equal(targets, Y)


def test_function_with_options(module):
    source = "import torch\ndef load(n, m=1):\n    return [(torch.ones(n, m), torch.ones(n))], None"
    module(source=source)
    clients, test = data.from_function("users_module:load", n=3, m=2)
    assert clients[0][0].shape == (3, 2)
    assert test is None
    with pytest.raises(ConfigError, match="has no option 'k'; it takes n, m"):
        data.from_function("users_module:load", k=1)
    with pytest.raises(ConfigError, match="needs option 'n'"):
        data.from_function("users_module:load")


def test_what_the_function_raises_is_not_dressed_up(module):
    module(source="def load():\n    raise RuntimeError('the disk is on the moon')")
    with pytest.raises(RuntimeError, match="moon"):
        data.from_function("users_module:load")


def test_no_function(module):
    module(([], None))
    with pytest.raises(ConfigError, match="not a function"):
        data.from_function("users_module:result")
    with pytest.raises(ConfigError, match="did you mean 'load'"):
        data.from_function("users_module:laod")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"must return \(clients, test\), got a NoneType"),
        (([], None, None), "got a tuple of length 3"),
        (([], None), "got an empty list"),
        (({}, None), "got a dict"),
        ((torch.zeros(3), None), "got a Tensor"),
        ((torch.zeros(3, 2), torch.zeros(3)), "got a Tensor"),
        (([X], None), "client 0 of users_module:load must be a Dataset or a tuple"),
        (([(X, Y, Y)], None), "got 3 tensors"),
        (([(X, Y[:5])], None), "6, 5 rows"),
        (([(X, Y), (X[:0], Y[:0])], None), "client 1 of users_module:load has no examples"),
        (([(X, Y), (X[:, :2], Y)], None), r"client 0 .* and client 1 .* do not fit .*\(3,\)"),
        (([(X, Y), (X, Y * 1.0)], None), "torch.int64, of the second .*torch.float32"),
        (([(X, Y)], (X[:, :2], Y)), "the test set of users_module:load do not fit"),
        (([(X * np.nan, Y)], None), "client 0 of users_module:load: inputs hold NaN"),
        (([(X * 1j, Y)], None), "complex"),
        (([(X, np.array(["a"] * 6))], None), "client 0"),
    ],
)
def test_wrong_results(module, result, message):
    module(result)
    with pytest.raises(DataError, match=message):
        data.from_function("users_module:load")


# --- folders -----------------------------------------------------------------------------------


def test_folder(tmp_path):
    np.savez(tmp_path / "b.npz", x=X.astype(np.float16), y=Y.astype(np.uint8))
    np.savez(tmp_path / "a.npz", inputs=X.astype(">f8"), targets=Y)
    save_file({"inputs": X[:2], "targets": Y[:2]}, tmp_path / "c.safetensors")
    np.savez_compressed(tmp_path / "test.npz", x=X[:1], y=Y[:1])
    (tmp_path / "README.md").write_text("passed over")
    (tmp_path / ".hidden.npz").write_text("passed over")
    own = data.from_folder(tmp_path)
    assert [len(inputs) for inputs, _ in own.clients] == [6, 6, 2]
    assert len(own.test[0]) == 1
    assert np.allclose(own.clients[0][0], X)
    assert own.clients[1][1].dtype == torch.int64


def test_folder_without_test_set(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    assert data.from_folder(str(tmp_path)).test is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": X}, r"must hold 'inputs' and 'targets'.*got \['inputs'\]"),
        ({"x": X, "y": np.array([{}] * 6)}, "allow_pickle=False"),
        ({"x": X, "y": Y[:5]}, "6, 5 rows"),
        ({"x": X[:, :2], "y": Y}, r"a.npz and .*b.npz do not fit together"),
    ],
)
def test_wrong_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(DataError, match=message):
        data.from_folder(tmp_path)


def test_wrong_folders(tmp_path):
    (tmp_path / "north").mkdir()
    with pytest.raises(DataError, match=r"a folder of files is a fafed\.data\.Files"):
        data.from_folder(tmp_path)
    (tmp_path / "north").rmdir()
    with pytest.raises(DataError, match="not a folder"):
        data.from_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no client"):
        data.from_folder(tmp_path)
    for name in ("a.npz", "test.npz", "test.safetensors"):
        (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"test\.npz and test\.safetensors"):
        data.from_folder(tmp_path)
    (tmp_path / "test.npz").unlink()
    with pytest.raises(DataError, match=r"cannot read .*a\.npz"):
        data.from_folder(tmp_path)
    (tmp_path / "a.npz").unlink()
    (tmp_path / "b.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"cannot read .*b\.safetensors"):
        data.from_folder(tmp_path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet"):  # another test may have imported them
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"needs pyarrow.*fafed\[parquet\]"):
        data.from_folder(tmp_path)


@pytest.fixture
def table():
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    return lambda path, **columns: parquet.write_table(arrow.table(columns), path)


def test_parquet(tmp_path, table):
    table(tmp_path / "a.parquet", target=[1, 0], age=[30, 40], name=["x", "y"], bmi=[20.5, 30.0])
    table(tmp_path / "b.parquet", age=[True, False], bmi=[1.0, 2.0], label=[0, 1])
    own = data.from_folder(tmp_path)
    assert own.clients[0][0].tolist() == [[30.0, 20.5], [40.0, 30.0]]
    assert own.clients[0][1].tolist() == [1, 0]
    assert own.clients[1][0].tolist() == [[1.0, 1.0], [0.0, 2.0]]
    assert own.clients[1][1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"bmi": [1.0], "age": [30], "target": [0]}, r"columns age, bmi.*columns bmi, age"),
        ({"age": [None, 3], "bmi": [1.0, 2.0], "target": [0, 1]}, r"'age' has gaps \(1\)"),
        ({"age": [1], "bmi": [1.0], "target": ["yes"]}, "needs a numeric target"),
        ({"name": ["x"], "target": [1]}, "at least one other numeric column"),
        ({}, "needs a numeric target"),
    ],
)
def test_wrong_parquet(tmp_path, table, columns, message):
    table(tmp_path / "a.parquet", age=[30, 40], bmi=[20.5, 30.0], target=[1, 0])
    table(tmp_path / "b.parquet", **columns)
    with pytest.raises(DataError, match=message):
        data.from_folder(tmp_path)


CSV = "target,age,name,bmi\n1,30,x,20.5\n0,40,y,30\n"


def test_csv(tmp_path, caplog):
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.csv").write_text("age,bmi,label\n1,1e0,0\n\n0, 2.0,1\n", "utf-8-sig")
    (tmp_path / "test.csv").write_text("age,bmi,label\n5,6.5,1\n")
    own = data.from_folder(tmp_path)
    assert own.clients[0][0].tolist() == [[30.0, 20.5], [40.0, 30.0]]
    assert own.clients[0][1].tolist() == [1, 0]
    assert own.clients[1][0].tolist() == [[1.0, 1.0], [0.0, 2.0]]
    assert own.clients[1][1].dtype == torch.int64
    assert own.test[0].tolist() == [[5.0, 6.5]]
    assert data.from_file(tmp_path / "b.csv")[1].tolist() == [0, 1]
    assert "columns with text, left out: name" in caplog.text


def test_a_file_of_validation_data_would_be_a_client(tmp_path, caplog):
    for name in ("a", "test"):
        (tmp_path / f"{name}.csv").write_text(CSV)
    data.from_folder(tmp_path)
    assert "read as a client" not in caplog.text
    (tmp_path / "validation.csv").write_text(CSV)
    assert len(data.from_folder(tmp_path).clients) == 2
    assert "validation.csv is read as a client" in caplog.text


def test_a_csv_is_read_like_a_parquet_file(tmp_path, table):
    (tmp_path / "a.csv").write_text(CSV)
    table(tmp_path / "b.parquet", target=[1, 0], age=[30, 40], name=["x", "y"], bmi=[20.5, 30.0])
    one, two = data.from_folder(tmp_path).clients
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,bmi,target\n1,2\n", "row 2 has 2 fields, the header has 3"),
        ("age,bmi,target\n1,,0\n2,3,1\n", r"'bmi' has gaps \(1\)"),
        ("age,bmi,target\n1,2,yes\n", "needs a numeric target.*columns of text need rules"),
        ("bmi,age,target\n1,2,1\n", r"columns age, bmi.*columns bmi, age"),
        ("age,bmi,target\n1,nan,1\n", "inputs hold NaN"),
        ("age,bmi,target\n", "has no examples"),
        ("", "has no examples"),
    ],
)
def test_wrong_csv(tmp_path, text, message):
    (tmp_path / "a.csv").write_text("age,bmi,target\n30,20.5,1\n40,30.0,0\n")
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        data.from_folder(tmp_path)


def test_damaged_parquet(tmp_path, table):
    table(tmp_path / "a.parquet", age=[30], target=[1])
    (tmp_path / "a.parquet").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"cannot read .*a\.parquet"):
        data.from_folder(tmp_path)
