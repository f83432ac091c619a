"""Docstrings of the public Python interface are complete in the sense of numpydoc."""

from __future__ import annotations

import inspect

import pytest
from numpydoc.docscrape import NumpyDocString

from fco_cli import api, estimators, testing

FUNCTIONS = [
    value
    for module in (api, testing)
    for name, value in vars(module).items()
    if inspect.isfunction(value) and not name.startswith("_") and value.__module__.startswith(module.__name__)
]
CLASSES = [getattr(estimators, name) for name in estimators.__all__]
METHODS = {
    member.__qualname__: member
    for kind in CLASSES
    for name, member in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_") and member.__module__.startswith("fco_cli.")
}


def sections(documented: object) -> NumpyDocString:
    return NumpyDocString(inspect.getdoc(documented) or "")


def parameters(documented: NumpyDocString) -> list[str]:
    names = [name for parameter in documented["Parameters"] for name in parameter.name.split(",")]
    return [name.strip().lstrip("*") for name in names]


@pytest.mark.parametrize("documented", [*FUNCTIONS, *METHODS.values(), *CLASSES], ids=lambda one: one.__qualname__)
def test_every_parameter_is_described(documented):
    signature = [name for name in inspect.signature(documented).parameters if name != "self"]
    assert sorted(parameters(sections(documented))) == sorted(signature)


@pytest.mark.parametrize("function", [*FUNCTIONS, *METHODS.values()], ids=lambda one: one.__qualname__)
def test_what_is_returned_is_described(function):
    returns = inspect.signature(function).return_annotation
    assert bool(sections(function)["Returns"]) == (returns not in (None, "None"))


@pytest.mark.parametrize("documented", [*FUNCTIONS, *CLASSES], ids=lambda one: one.__qualname__)
def test_there_is_an_example(documented):
    assert sections(documented)["Examples"]
    if inspect.isclass(documented):
        assert sections(documented)["Attributes"]
