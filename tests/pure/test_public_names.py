"""The package's public names, and the tree of its errors."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest

import compaction_store as cs
from compaction_store import errors, models

_MOST = 55
_ERRORS = {
    name: found
    for name, found in inspect.getmembers(errors, inspect.isclass)
    if found.__module__ == errors.__name__ and not name.startswith("_")
}
# It holds a view, so it is defined above errors.py.
_ERRORS["BudgetExceeded"] = cs.BudgetExceeded


def test_the_list_of_public_names_is_sorted_and_has_no_name_twice() -> None:
    assert list(cs.__all__) == sorted(set(cs.__all__))


@pytest.mark.parametrize("name", cs.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(cs, name) is not None


@pytest.mark.parametrize("package", ["evaluation", "importers", "models", "probes", "strategies"])
def test_every_name_in_the_stub_of_a_package_is_its_value_and_not_a_module(package: str) -> None:
    """A module that is imported under the name of a function would hide the function."""
    found = import_module(f"compaction_store.{package}")
    for module in pkgutil.iter_modules(found.__path__):
        import_module(f"compaction_store.{package}.{module.name}")
    assert [name for name in found.__all__ if inspect.ismodule(getattr(found, name))] == []
    assert set(found.__all__) <= set(dir(found))


def test_every_class_imported_into_the_package_is_public() -> None:
    classes = {name for name, _ in inspect.getmembers(cs, inspect.isclass) if not name.startswith("_")}
    assert classes <= set(cs.__all__)


@pytest.mark.parametrize("name", sorted(_ERRORS))
def test_every_error_derives_from_the_one_base(name: str) -> None:
    assert issubclass(_ERRORS[name], cs.CompactionStoreError)
    assert getattr(cs, name, _ERRORS[name]) is _ERRORS[name]


def test_the_root_has_what_an_application_names_and_no_more() -> None:
    assert len(cs.__all__) <= _MOST


def test_a_name_is_the_same_value_at_the_root_and_in_models() -> None:
    assert all(getattr(cs, name) is getattr(models, name) for name in set(vars(models)["__all__"]) & set(cs.__all__))


def test_every_error_says_in_sentences_what_it_means() -> None:
    assert [name for name, found in _ERRORS.items() if not (inspect.getdoc(found) or "").strip().endswith(".")] == []
