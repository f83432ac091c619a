"""Fixtures: a site with handwritten requests, as an attacker with the lead's kit would send them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fco_cli.data.preparation import Recipe, agree
from fco_cli.data.readers.source import Columns
from fco_cli.data.statistics import Summary
from fco_cli.federation.masks import Credentials
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Policy, preset
from fco_cli.federation.site.data import sent_task
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.site import Site
from tests.federation.coordinator.test_clients import task_of

SITES = ["east", "north", "south"]


@dataclass
class Attacker:
    """Session with a site; answers are returned, refusals too."""

    site: Site
    session: str = "f" * 32
    number: int = 0
    features: int = 0
    sent: list[bytes] = field(default_factory=list)

    def send(self, kind: str, head: dict[str, Any] | None = None, **arrays: Any) -> Message:
        self.number += 1
        content = Message(kind, {"session": self.session, "number": self.number, **(head or {})}, arrays).packed()
        self.sent.append(content)
        return Message.unpacked(self.site.handle(content))

    def ask(self, kind: str, head: dict[str, Any] | None = None, **arrays: Any) -> Message:
        """Send a request about the only fit; return the answer about it."""
        response = self.send(kind, head, **{f"{name}.0": values for name, values in arrays.items()})
        return Message(response.kind, response.head, {
            name.removesuffix(".0"): values for name, values in response.arrays.items()
        })  # fmt: skip

    def prepare(
        self, seed: int = 0, fold: dict | None = None, standardize: bool = False, exact: bool = False, **task: Any
    ) -> Message:
        """Request a split with one fit; return the answer with the keys of this fit."""
        if self.number == 0:
            self.send("describe")
        options = sent_task(
            task_of(Path(), task.pop("loss", "logistic"), standardize=standardize, **{"holdout": "none"} | task)
        )
        head = {"task": options, "sites": SITES, "seed": seed, "dtype": "float64", "classes": None, "summary": True}
        response = self.send("prepare", head | {"exact": exact, "folds": [fold]})
        if response.kind == "refused":
            return response
        return Message(response.kind, response.head["fits"][0] | {"outputs": response.head["outputs"]})

    def apply(self, prepared: Message) -> None:
        summary = Summary.from_plain(prepared.head["summary"])
        agreed = agree(summary, Recipe(standardize=False))
        self.features = len(agreed.features) + 1
        applied = self.send("apply", {"preparations": [agreed.as_json()], "outputs": 1, "start": None})
        assert applied.kind == "apply"

    def stack(self, algo: str = "fedavg", transform: dict | None = None, numbers: Any = None) -> Message:
        head = {
            "fit": 0, "stack": 1, "jobs": 1, "algo": {"name": algo}, "regularizer": {"name": "none"},
            "mirror": {"name": "euclidean"}, "transform": transform or {"name": "none"},
        }  # fmt: skip
        one = np.ones(1)
        arrays = {"client_lr": one, "server_lr": one, "psi": np.zeros((1, 1)), "options": np.zeros((1, 1))}
        return self.send("stack", head, **arrays, transform=np.zeros((1, 1)) if numbers is None else numbers)

    def train(self, w: Any = None, **changes: Any) -> Message:
        head = {
            "stack": 1, "tokens": ["0" * 32], "outcomes": {}, "round": 0, "seed": 0, "batch_size": 1000,
            "local_epochs": 1, "steps": None, "last_batch": "keep",
        }  # fmt: skip
        return self.ask("train", head | changes, w=np.zeros((1, self.features)) if w is None else w)

    def evaluate(self, w: Any = None, **changes: Any) -> Message:
        w = np.zeros((1, self.features)) if w is None else w
        models = {"fit": 0, "jobs": len(w), "weights": None} | {
            key: changes.pop(key) for key in ("jobs", "weights", "noise") if key in changes
        }
        head = {"fits": [models], "part": "training", "gradient": True, "sums": False, "spread": False}
        return self.ask("evaluate", head | changes, w=w)

    def hessian(self, w: Any = None, **changes: Any) -> Message:
        w = np.zeros((1, self.features)) if w is None else w
        models = {"fit": 0, "jobs": len(w), "weights": None, "hessians": len(w)} | changes
        return self.ask("hessian", {"fits": [models]}, w=w)


def refusal(response: Message) -> str:
    """Return the reason of a refusal, which is one line without numbers of rows' values."""
    assert response.kind == "refused", response
    assert not response.arrays
    assert "\n" not in response.head["reason"]
    return response.head["reason"]


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return 60 rows of three columns, with labels."""
    random = np.random.default_rng(1)
    x = random.normal(size=(60, 3))
    return x, (x @ [1.0, -1.0, 0.5] + random.normal(size=60) > 0).astype(float)


@pytest.fixture
def attack(tmp_path, rows) -> Callable[..., Attacker]:
    """Return a function that starts a session with a site; its ledger and audit file persist."""

    def make(
        policy: Policy | None = None,
        data: Path | None = None,
        credentials: Credentials | None = None,
        **columns: Any,
    ) -> Attacker:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        (home / "secret").write_bytes(bytes(range(32)))  # the same splits in every test
        if data is None:
            data = tmp_path / "north.npz"
            np.savez(data, x=rows[0], y=rows[1], client=np.full(len(rows[1]), "north"))
        file = SiteFile(data, "north", Columns(**columns), home / "secret")
        return Attacker(Site("north", file, policy or preset("strict"), home, credentials))

    return make
