"""Attacks with the lead's kit: `python -m tests.federation.attacker HOME FILE`; injected code would create FILE.

Prints a line of JSON for every attempt.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fco_cli.federation.flare.kits import kit_path
from fco_cli.federation.flare.link import FlareLink
from fco_cli.federation.flare.rights import LEAD
from fco_cli.federation.message import Message
from tests.federation.site.test_site import BILLION, SESSION, STATE, TRAIN, start_stack

NUMBERS = itertools.count(1)
PREPARE = {
    "task": {"data": "/etc/passwd"}, "sites": ["north"], "seed": 0, "dtype": "float64", "classes": None,
    "folds": [None], "summary": True, "exact": False,
}  # fmt: skip

logging.disable(logging.CRITICAL)


def report(what: str, outcome: object) -> None:
    print(json.dumps({"what": what, "outcome": str(outcome)}), flush=True)


def submit(link: FlareLink, change) -> str:
    """Submit a changed job and return its id."""
    with tempfile.TemporaryDirectory() as folder:
        link._write_job(Path(folder))
        change(Path(folder))
        return link.session.submit_job(folder)


def wait_for_end(link: FlareLink, job: str) -> str:
    """Wait for the end of a job and return its status."""
    end = time.monotonic() + 60
    while not (meta := link.session.get_job_meta(job))["status"].startswith("FINISHED") and time.monotonic() < end:
        time.sleep(0.3)
    return f"{meta['status']} {meta.get('job_deploy_detail')}"


def with_code(folder: Path) -> None:
    (folder / "site/custom").mkdir()
    (folder / "site/custom/mine.py").write_text(f"open('{sys.argv[2]}', 'w').close()\n")


def as_super(folder: Path) -> None:
    """Add code and a marker by which the server changes the job's submitter (usurper/)."""
    with_code(folder)
    (folder / "site/custom/as_super").touch()


def with_class(path: str):
    def change(folder: Path) -> None:
        config = folder / "site/config/config_fed_client.json"
        content = json.loads(config.read_text())
        content["executors"][0]["executor"] = {"path": path, "args": {"args": ["touch", sys.argv[2]]}}
        config.write_text(json.dumps(content))

    return change


def ask(link: FlareLink, kind: str, head: dict | None = None, **arrays: np.ndarray) -> Message:
    """Return north's response to the next request of one session."""
    content = Message(kind, {"session": SESSION, "number": next(NUMBERS), **(head or {})}, arrays).packed()
    return Message.unpacked(link.request(["north"], content, 20)["north"])


def main() -> None:
    home = Path(sys.argv[1])
    link = FlareLink(home, ["east", "north", "south"], 250)
    session, request = link.session, functools.partial(ask, link)
    report("an honest request", start_stack(request).kind)
    changes = {
        "NaN": {"z.0": np.full((1, 6), np.nan)},
        "infinity": {"z.0": np.full((1, 6), np.inf)},
        "another shape": {"z.0": np.zeros((1, 7))},
        "another type": {"z.0": np.zeros((1, 6), np.float32)},
    }
    responses = {what: request("train", TRAIN, **(STATE | change)) for what, change in changes.items()}
    responses["a billion jobs"] = start_stack(request, jobs=10**9)
    for what, content in {
        "garbage": b"\x00" * 64,
        "a replay": Message("describe", {"session": SESSION, "number": 1}).packed(),
        "another session": Message("describe", {"session": "b" * 32, "number": 97}).packed(),
        "a shell kind": Message("shell", {"session": SESSION, "number": 98, "command": "id"}).packed(),
        "a path": Message("prepare", {**PREPARE, "session": SESSION, "number": 99}).packed(),
        "out of order": Message("describe", {"session": SESSION, "number": 98}).packed(),
        "a big head": (10**9).to_bytes(8, "big") + b"{}",
        "a billion numbers": BILLION,
    }.items():
        responses[what] = Message.unpacked(link.request(["north"], content, 20)["north"])
    for what, response in responses.items():
        report(what, f"{response.kind}: {response.head.get('reason')}")
    link.key, key = "0" * 32, link.key
    try:
        report("another's key", link.request(["north"], b"", 5))
    except Exception as problem:
        report("another's key", f"refused: {problem}")
    link.key = key
    for what, call in {
        "cat": lambda: session.cat_target("north", file="startup/client.key"),
        "ls of the server": lambda: session.ls_target("server"),
        "a shell command": lambda: session.api.do_command("env north"),
    }.items():
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                outcome = f"answered: {call()}"
            except Exception as problem:
                outcome = f"refused: {type(problem).__name__} {problem}"
        report(what, outcome)
    link.close()
    link = FlareLink.__new__(FlareLink)
    link.sites, link.key, link.min_sites = ["east", "north", "south"], "k", 3
    link.session = FlareLink.open_session(kit_path(home, LEAD), time.monotonic() + 20)
    jobs = {
        "a job with code": with_code,
        "a job with code, as super": as_super,
        "a class off the list": with_class("subprocess.Popen"),
    }
    jobs = {what: submit(link, change) for what, change in jobs.items()}
    for what, job in jobs.items():
        report(what, wait_for_end(link, job))
    link.session.close()


try:
    main()
finally:
    sys.stdout.flush()
    os._exit(0)  # FLARE's threads would keep this process alive
