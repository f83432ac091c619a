"""Digests of source code: edits that change them and edits that do not."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap

import pytest

from fco_cli.code_digest import content_of, definition_of, digest_of, digests, parse, reachable
from fco_cli.errors import UserError

HELPER = '''
"""A helper module."""
SCALE = 2
UNUSED = 3

def helper(x):
    """Return the scaled x."""
    return SCALE * x  # a comment

def unused(x):
    return x
'''
METHOD = """
import math
from my_helper import helper
import my_other

class Base:
    def common(self):
        return 1

class Method(Base):
    rate: float = 0.5

    def step(self, x: float) -> float:
        return helper(x) + my_other.shift(x) + math.sqrt(x)

    def late(self, x):
        from my_late import late
        return late(x)
"""
OTHER = "def shift(x):\n    return x + 1\n\ndef untouched(x):\n    return x\n"
LATE = "def late(x):\n    return x\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of modules outside the package."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path, my_method=METHOD, my_helper=HELPER, my_other=OTHER, my_late=LATE)
    yield tmp_path
    for name in ("my_method", "my_helper", "my_other", "my_late"):
        sys.modules.pop(name, None)


def write(folder, **modules):
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


def digest(folder, **edits):
    """Return the digest of Method after these edits, as in a new process."""
    write(folder, **edits)
    for name in ("my_method", "my_helper", "my_other", "my_late"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    clear_caches()
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return digest_of((importlib.import_module("my_method").Method,))
    finally:
        sys.dont_write_bytecode = before


def clear_caches():
    """Clear all caches of this process."""
    for cached in (digests.parsed_module, digests.digest_of, digests.is_foreign):
        cached.cache_clear()
    parse.parsed_modules.modules = None


@pytest.mark.parametrize(
    "edit",
    [
        {"my_method": METHOD.replace("return 1", "return 2")},
        {"my_method": METHOD.replace("rate: float = 0.5", "rate: float = 0.25")},
        {"my_helper": HELPER.replace("SCALE * x", "x * SCALE")},
        {"my_helper": HELPER.replace("SCALE = 2", "SCALE = 2.0")},
        {"my_other": OTHER.replace("x + 1", "x - 1")},
        {"my_late": LATE.replace("return x", "return -x")},
        {"my_helper": HELPER + "\nprint()\n"},  # executed for its side effect
    ],
    ids=["base class", "default", "helper", "constant", "attribute of a module", "late import", "statement"],
)
def test_edits_of_reachable_code_change_the_digest(folder, edit):
    assert digest(folder) != digest(folder, **edit)


@pytest.mark.parametrize(
    "edit",
    [
        {"my_helper": HELPER.replace("A helper module.", "Other words.").replace("Return the scaled x.", "Scale x.")},
        {"my_helper": HELPER.replace("# a comment", "").replace("SCALE * x", "SCALE  *  x")},
        {"my_helper": HELPER.replace("return x", "return 2 * x").replace("UNUSED = 3", "UNUSED = 4")},
        {"my_other": OTHER.replace("return x\n", "return 5 * x\n")},
        {"my_method": METHOD.replace("x: float) -> float", "x)")},
    ],
    ids=["docstring", "comment and layout", "unused definitions", "unused attribute", "annotation of a function"],
)
def test_edits_without_effect_on_results_keep_the_digest(folder, edit):
    assert digest(folder) == digest(folder, **edit)


def test_the_digest_does_not_depend_on_the_disk_cache(folder):
    cold = digest(folder)
    cache = folder / "cache" / "fco" / "code" / "digests"
    assert cache.exists()
    assert digest(folder) == cold
    content = cache.read_bytes()
    for damaged in (b"", content[:-1], content[:40] + bytes(8) + content[48:]):
        cache.write_bytes(damaged)
        assert digest(folder) == cold
    cache.write_bytes(content)
    os.chmod(cache.parent, 0o777)  # another user could have written it
    assert digest(folder) == cold


def test_a_module_edited_after_loading_is_rejected(folder):
    digest(folder)
    for edit in ({"my_helper": HELPER.replace("SCALE * x", "3 * x")}, {"my_helper": HELPER.replace("= 2", "= 7")}):
        write(folder, **edit)
        clear_caches()
        with pytest.raises(
            UserError, match=r"my_helper\.py: the file was edited after this process loaded it; [^\n]+$"
        ):
            digest_of((sys.modules["my_method"].Method,))
        digest(folder)  # as in a new process


def test_a_module_may_have_arrays_and_names_that_are_assigned_twice(folder):
    """As in a script, whose classes are used in its own process."""
    digest(folder, my_helper=HELPER + "\nimport numpy\ntable = numpy.ones(3)\nstep = 0\nstep += 1\n")


def test_references_to_installed_packages_are_ignored(folder):
    digest(folder)
    modules = {module for module, _ in reachable([definition_of(sys.modules["my_method"].Method)])}
    assert modules == {"my_method", "my_helper", "my_other", "my_late"}


def define(text, **names):
    """Return the function `f` that the source text defines."""
    namespace = {"__name__": "__main__", **names}
    exec(textwrap.dedent(text), namespace)
    return namespace["f"]


def test_digests_of_loaded_functions_cover_bytecode_and_globals():
    text = '''
    def f(x):
        """Scale x."""
        return FACTOR * g(x)
    '''
    g, other = (define(f"def f(x):\n    return x + {number}") for number in (1, 2))
    expected = content_of(define(text, FACTOR=2.0, g=g))
    assert content_of(define(text.replace("Scale x.", "Other words."), FACTOR=2.0, g=g)) == expected
    assert content_of(define(text, FACTOR=2, g=g)) != expected
    assert content_of(define(text, FACTOR=2.0, g=other)) != expected
    assert content_of(define(text, FACTOR=2.0, g=other), without={"g"}) == content_of(
        define(text, FACTOR=2.0, g=g), without={"g"}
    )
    assert content_of(define(text.replace("*", "/"), FACTOR=2.0, g=g)) != expected


def test_digests_of_interactive_classes_cover_their_methods():
    def session(number):
        namespace = {"__name__": "fco_session"}
        exec(f"class Mine:\n    def step(self):\n        return {number}", namespace)
        return namespace["Mine"]

    assert digest_of((session(1),)) != digest_of((session(2),))
