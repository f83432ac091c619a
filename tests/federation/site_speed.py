"""Processor time of a gradient at a strict site: `python -m tests.federation.site_speed ROWS FEATURES MODELS`.

Half of the features are binary. Requests alternate between two sites, of which one does not check combinations of
answers; prints the median of each in quarters of the MODELS, and the size of the stored basis.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fco_cli.data.readers.source import Columns
from fco_cli.federation.policy import preset
from fco_cli.federation.site.isolation import SLOPES
from fco_cli.federation.site.rows import SiteFile
from fco_cli.federation.site.site import Site
from fco_cli.kernels.compiled import set_threads
from tests.federation.site.conftest import Attacker


def main() -> None:
    rows, features, models = (int(one) for one in sys.argv[1:])
    set_threads(1)
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, features))
    x[:, : features // 2] = x[:, : features // 2] > 0
    with tempfile.TemporaryDirectory() as folder:
        file, parties = Path(folder) / "north.npz", []
        np.savez(file, x=x, y=(random.random(rows) < 0.5).astype(float), client=np.full(rows, "north"))
        for name in ("checked", "unchecked"):
            home = Path(folder) / name
            home.mkdir()
            policy = preset("strict", max_equations_per_value=None)
            party = Attacker(Site("north", SiteFile(file, "north", Columns(), home / "secret"), policy, home, None))
            party.apply(party.prepare())
            parties.append(party)
        parties[1].site.data.models.check = lambda *_, **__: None  # type: ignore[method-assign]
        seconds = np.empty((models, 2))
        for used in seconds:
            w = np.append(0.1 * random.normal(size=features), 0.0)[None]
            for k, party in enumerate(parties):
                before = time.process_time()
                assert party.evaluate(w).kind == "evaluate"
                used[k] = time.process_time() - before
        for part in np.array_split(seconds, 4):
            checked, unchecked = np.median(part, axis=0) * 1e3
            print(f"{unchecked:.2f} -> {checked:.2f} ms")
        print(f"{parties[0].site.data.models.spans[SLOPES].size} vectors")


main()
