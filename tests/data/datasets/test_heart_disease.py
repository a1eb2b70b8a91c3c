import zipfile

import pytest
from heart import accept, files

from fafed import data
from fafed.data.datasets.heart_disease import HOSPITALS, SHA256
from fafed.errors import ConfigError, DataError
from fafed.experiments.config import Experiment

FILES = files()
VA = "processed.va.data"


def folder(path, **changes):
    """A folder with the four files, some of them changed."""
    path.mkdir()
    for name, content in (FILES | changes).items():
        (path / name).write_bytes(content)
    return path


def in_zip(path):
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("Index", "the whole folder")
        for name, content in FILES.items():
            out.writestr(f"heart/{name}", content)
    return path


@pytest.mark.parametrize("form", ["folder", "archive", "folder with the archive"])
def test_import_and_load(tmp_path, monkeypatch, form):
    accept(monkeypatch, FILES)
    source = (
        folder(tmp_path / "files") if form == "folder" else in_zip(tmp_path / "heart+disease.zip")
    )
    source = tmp_path if form == "folder with the archive" else source
    data.import_files("heart-disease", source, tmp_path / "cache")
    tables = data.load("heart-disease", tmp_path / "cache")
    sizes = {hospital: len(rows) for hospital, rows in tables.sites.items()}
    assert sizes == {"cleveland": 303, "hungary": 294, "switzerland": 123, "long-beach": 200}
    first = FILES["processed.hungarian.data"].decode().splitlines()[0]
    assert ",".join(tables.sites["hungary"][0]) == first
    assert tables.columns[0] == "age"
    assert tables.columns[-1] == "num"


def changed(row, field, text):
    lines = FILES[VA].decode().splitlines()
    fields = lines[row].split(",")
    fields[field] = text
    lines[row] = ",".join(fields)
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (FILES[VA][: FILES[VA].rindex(b"\n", 0, -1) + 1], "has 199 rows, expected 200: it is cut"),
        (FILES[VA] * 2, "has 400 rows, expected 200"),
        (changed(6, 3, "130,1"), r"row 7 has 15 columns, expected 14 \(age, sex, cp, "),
        (changed(0, 0, "old"), "row 1 has 'old' in the column age, expected a number or ?"),
        (changed(1, 4, ""), "row 2 has '' in the column chol, expected a number or ?"),
        (changed(2, 13, "?"), r"row 3 has '\?' in the column num, expected a number; get"),
        (b"\xff\xfe", "is not a text of numbers"),
        (changed(0, 0, "99"), r"expected sha256 \w+, found \w+; it is damaged or another version"),
    ],
)
def test_another_file_is_refused_and_nothing_installed(tmp_path, monkeypatch, content, words):
    accept(monkeypatch, FILES)
    source = folder(tmp_path / "files", **{VA: content})
    with pytest.raises(DataError, match=words) as told:
        data.import_files("heart-disease", source, tmp_path / "cache")
    assert VA in str(told.value)
    assert not (tmp_path / "cache" / "heart-disease").exists()


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    accept(monkeypatch, FILES)
    with pytest.raises(DataError, match=r"no heart\+disease.zip or processed.cleveland.data or "):
        data.import_files("heart-disease", tmp_path, tmp_path / "cache")
    (folder(tmp_path / "files") / VA).unlink()
    with pytest.raises(DataError, match=f"no {VA} in .*files: name the folder"):
        data.import_files("heart-disease", tmp_path / "files", tmp_path / "cache")
    with zipfile.ZipFile(tmp_path / "few.zip", "w") as out:
        out.writestr("processed.hungarian.data", b"")
    with pytest.raises(DataError, match=r"few\.zip lacks processed.cleveland.data"):
        data.import_files("heart-disease", tmp_path / "few.zip", tmp_path / "cache")
    (tmp_path / "few.zip").write_bytes(b"not an archive")
    with pytest.raises(DataError, match=r"cannot read .*few\.zip"):
        data.import_files("heart-disease", tmp_path / "few.zip", tmp_path / "cache")


def test_get(tmp_path, monkeypatch, server):
    """Each file has the address and the size that the catalogue names."""
    known = data.DATASETS["heart-disease"].origin
    assert [file.name for file in known.downloads] == list(SHA256) == list(known.files)
    assert sum(file.size for file in known.downloads) == 39_570
    server.files = {
        name: b"x" * file.size for name, file in zip(SHA256, known.downloads, strict=True)
    }
    with pytest.raises(DataError, match=r"processed.cleveland.data .*expected sha256 a74b7efa"):
        data.get("heart-disease", tmp_path, mirror=server.url)


def test_an_experiment_says_how_to_use_it():
    content = {"rounds": 1, "data": {"name": "heart-disease"}, "model": {"name": "mlp"}}
    with pytest.raises(ConfigError, match="each a client: write a file for each"):
        Experiment.from_dict(content | {"algorithm": {"name": "fedavg"}})


def test_the_real_ones(real):
    tables = real("heart-disease")
    sick = {h: sum(float(row[-1]) > 0 for row in rows) for h, rows in tables.sites.items()}
    assert sick == {"cleveland": 139, "hungary": 106, "switzerland": 115, "long-beach": 149}
    assert set(sick) == set(HOSPITALS)
