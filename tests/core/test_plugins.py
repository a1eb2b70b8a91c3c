import pytest

from fafed.core import plugins
from fafed.errors import ConfigError


def test_find():
    assert plugins.find("math:sqrt", "x")(4) == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("math", "x must look like 'module:name', got 'math'"),
        (":sqrt", "must look like"),
        ("math:", "must look like"),
        ("no_such_module:f", "module 'no_such_module' cannot be imported .*PYTHONPATH"),
        ("math:sqrrt", "math has no 'sqrrt'; did you mean 'sqrt'"),
    ],
)
def test_not_found(path, message):
    with pytest.raises(ConfigError, match=message):
        plugins.find(path, "x")


def test_module_that_fails_while_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "users_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero"):
        plugins.find("users_broken:f", "x")


def test_options():
    def call(a, b=2, *, c):
        pass

    plugins.check_options(call, {"a": 1, "c": 3}, "x")
    plugins.check_options(lambda **anything: None, {"z": 1}, "x")
    with pytest.raises(ConfigError, match="x has no option 'd'; it takes a, b, c"):
        plugins.check_options(call, {"a": 1, "c": 3, "d": 4}, "x")
    with pytest.raises(ConfigError, match="x needs option 'c'"):
        plugins.check_options(call, {"a": 1}, "x")
    with pytest.raises(ConfigError, match="it takes none"):
        plugins.check_options(lambda: None, {"a": 1}, "x")
