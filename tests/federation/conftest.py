"""Fixtures: hospitals with one file each, the pooled rows, and sites without a transport."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from fco_cli.data.readers.source import Columns
from fco_cli.federation.coordinator.sites import Sites
from fco_cli.federation.masks import Credentials
from fco_cli.federation.message import Message
from fco_cli.federation.policy import Policy, preset
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.site import Site

NAMES = ["east", "north", "south"]
ROWS = (23, 31, 18)  # unequal, so that weights and partial batches matter
FEATURES = 5


def labels_of(loss: str, scores: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if loss == "logistic":
        return (scores > 0).astype(float)
    if loss == "softmax":
        return np.digitize(scores, [-1, 1]).astype(float)
    if loss == "cox":  # times, negative where they are censored
        return (
            np.exp(-scores) * random.exponential(size=len(scores)) * np.where(random.random(len(scores)) < 0.7, 1, -1)
        )
    if loss == "poisson":
        return random.poisson(np.exp(scores / 2)).astype(float)
    return scores + random.normal(0, 0.1, len(scores))


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that creates a folder with SITE.npz for every site and pooled.npz, for a loss."""

    def make(loss: str) -> Path:
        folder = tmp_path_factory.mktemp(loss)
        random = np.random.default_rng(3)
        parts = []
        for name, rows in zip(NAMES, ROWS, strict=True):
            x = random.normal(random.normal(0, 0.5, FEATURES), 1 + random.random(), (rows, FEATURES))
            y = labels_of(loss, x @ np.array([1.0, -1, 0.5, 0, 0]), random)
            np.savez(folder / f"{name}.npz", x=x, y=y, client=np.full(rows, name))
            parts.append((x, y, np.full(rows, name)))
        x, y, client = (np.concatenate(column) for column in zip(*parts, strict=True))
        np.savez(folder / "pooled.npz", x=x, y=y, client=client)
        return folder

    made: dict[str, Path] = {}
    return lambda loss: made[loss] if loss in made else made.setdefault(loss, make(loss))


class InProcess:
    """Link to sites in this process; `changed` can alter the responses."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites = sites
        self.silent_in_training: str | None = None
        self.changed: Callable[[str, bytes], bytes] = lambda name, response: response
        self.sent: list[bytes] = []

    def request(self, sites: list[str], content: bytes, timeout: float) -> dict[str, bytes]:
        self.sent.append(content)
        silent = self.silent_in_training if Message.unpacked(content).kind == "train" else None
        return {name: self.changed(name, self.sites[name].handle(content)) for name in sites if name != silent}

    def last_contacts(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., Site]:
    """Return a function that starts a site; its earlier state is in its folder."""

    def make(
        name: str,
        folder: Path,
        policy: Policy | None = None,
        ending: str = "npz",
        credentials: Credentials | None = None,
    ) -> Site:
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        file = SiteFile(folder / f"{name}.{ending}", name, Columns(), home / "secret")
        return Site(name, file, policy or preset("demo"), home, credentials)

    return make


@pytest.fixture
def make_sites(make_site: Callable[..., Site]) -> Callable[..., Sites]:
    """Return a function that creates `Sites`; every connection restarts the sites."""

    def make(folder: Path, **options: object) -> Sites:
        policy, all_credentials = options.pop("policy", None), options.pop("all_credentials", {})

        def connect() -> InProcess:
            return InProcess(
                {name: make_site(name, folder, policy, credentials=all_credentials.get(name)) for name in NAMES}
            )

        return Sites(NAMES, connect, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_site_on(make_site: Callable[..., Site]) -> Callable[[Path], Sites]:
    """Return a function that creates `Sites` with one CSV table each."""

    def make(folder: Path) -> Sites:
        return Sites(NAMES, lambda: InProcess({name: make_site(name, folder, None, "csv") for name in NAMES}))

    return make


@pytest.fixture(scope="session")
def signed() -> Callable[..., Credentials]:
    """Return a function that creates credentials signed by an authority."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import rsa

    today, keys = datetime.now(), {}

    def named(common: str):
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])

    def certificate(name: str, key, issuer: str, with_key):
        lasting = (today - timedelta(1), today + timedelta(30))
        made = x509.CertificateBuilder(named(issuer), named(name), key.public_key(), 7, *lasting)
        return made.sign(with_key, hashes.SHA256())

    def make(name: str, authority: str = "fco", calling: str | None = None) -> Credentials:
        for one in (name, authority):
            if one not in keys:
                keys[one] = rsa.generate_private_key(65537, 1024)  # small, to be fast
        root = certificate(authority, keys[authority], authority, keys[authority])
        own = certificate(calling or name, keys[name], authority, keys[authority])
        return Credentials(own, keys[name], root)

    return make
