"""Tests of Hydra's parser with the argparse of Python 3.14, on any Python."""

import argparse
import sys

import hydra.main  # noqa: F401 - the module, which the function of that name hides
import pytest
from hydra._internal import utils

from fco_cli.help import check_only_text, patch_argparse


@pytest.fixture
def strict(monkeypatch):
    """Use the help check of Python 3.14 on an older Python too, with Hydra's original functions."""
    unpatched = getattr(utils.get_args_parser, "unpatched", utils.get_args_parser)
    monkeypatch.setattr(utils, "get_args_parser", unpatched)
    monkeypatch.setattr(sys.modules["hydra.main"], "get_args_parser", unpatched)
    if sys.version_info < (3, 14):
        add = argparse.ArgumentParser._add_action

        def check(self, action):
            if action.help and "%(nosuch)" in action.help:
                raise ValueError("badly formed help string")

        def add_checked(self, action):
            self._check_help(action)
            return add(self, action)

        monkeypatch.setattr(argparse.ArgumentParser, "_check_help", check, raising=False)
        monkeypatch.setattr(argparse.ArgumentParser, "_add_action", add_checked)


@pytest.mark.usefixtures("strict")
def test_hydras_parser_needs_the_patch():
    with pytest.raises((ValueError, TypeError)):
        utils.get_args_parser()
    patch_argparse()
    for module in (utils, sys.modules["hydra.main"]):
        arguments = module.get_args_parser().parse_args(["-m", "seed=1"])
        assert arguments.multirun
        assert arguments.overrides == ["seed=1"]


@pytest.mark.usefixtures("strict")
def test_errors_of_other_parsers_are_left_alone():
    def refuse(message):
        raise LookupError(message)

    patch_argparse(refuse)
    with pytest.raises(LookupError, match="--nosuch"):
        utils.get_args_parser().parse_args(["--nosuch"])
    with pytest.raises(SystemExit):
        argparse.ArgumentParser().parse_args(["--nosuch"])
    patch_argparse()


@pytest.mark.usefixtures("strict")
def test_help_texts_are_still_checked():
    with check_only_text(), pytest.raises(ValueError, match="badly formed"):
        argparse.ArgumentParser().add_argument("--wrong", help="%(nosuch)s")
    with pytest.raises((ValueError, TypeError)):  # the patch has been removed
        argparse.ArgumentParser().add_argument("--lazy", help=object())
