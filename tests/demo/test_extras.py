import pytest

from functrain.demo import extras


def test_everything_is_there_under_test() -> None:
    """The extra `test` brings the extra `demo` along."""
    assert extras.missing_extras() == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that cannot be found is reported by the name under which pip knows it."""
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "sklearn" else object())
    assert extras.missing_extras() == ["scikit-learn"]


def test_the_remedy_can_be_copied() -> None:
    """The sentence names what is missing and ends in the command that installs it."""
    told = extras.remedy(["scikit-learn", "rich"])
    assert told.startswith("functrain demo needs scikit-learn and rich, which are not installed here")
    assert told.endswith('pip install "functrain[demo]"')
