"""Time of a round in two checkouts, in turns: `python tests/federation/speed_in_turns.py OLD NEW FEATURES PAIRS`.

OLD and NEW are folders with a `.venv`. The parties of both run at the same time, and blocks of rounds alternate, so
that other work on the machine slows both alike. Prints the median of the ratios NEW / OLD of PAIRS blocks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

ROUNDS = 10**6  # more than are run


def start(checkout: Path, features: str) -> subprocess.Popen[str]:
    command = [checkout / ".venv/bin/python", "tests/federation/speed.py", features, str(ROUNDS), "--in-turns"]
    return subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def send(party: subprocess.Popen[str], line: str) -> None:
    party.stdin.write(f"{line}\n")
    party.stdin.flush()


def main() -> None:
    parties = [start(Path(folder).resolve(), sys.argv[3]) for folder in sys.argv[1:3]]
    for label in ("an evaluation in every round", "no evaluations"):
        for party in parties:
            while party.stdout.readline() != "ready\n":
                assert party.poll() is None, "speed.py has ended"
        seconds = np.empty((int(sys.argv[4]), 2, 2))  # [pair, checkout, processor or wall]
        for pair in seconds:
            for k in np.random.default_rng().permutation(2):
                send(parties[k], "go")
                pair[k] = [float(number) for number in parties[k].stdout.readline().split()]
        for kind, (old, new) in zip(("processor", "wall"), seconds.transpose(2, 1, 0), strict=True):
            ratios = np.quantile(new / old, [0.25, 0.5, 0.75])
            print(
                f"{label}, {kind}: {np.median(old) * 1e3:.1f} -> {np.median(new) * 1e3:.1f} ms, "
                f"ratio {ratios[1]:.3f} (quartiles {ratios[0]:.3f}, {ratios[2]:.3f})",
                flush=True,
            )
        for party in parties:
            send(party, "next")
    for party in parties:
        party.wait()


main()
