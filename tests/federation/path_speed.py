"""Round trips, bytes and seconds of a path between four sites: `python tests/federation/path_speed.py FOLDER`.

FOLDER has the files processed.*.data of https://archive.ics.uci.edu/dataset/45/heart+disease, a hospital each, or
eicu_apache.csv, the table of `task=eicu`; its 185 hospitals, of 11 rows each, are dealt in turn to four sites. Options
are `--experiment glm`, `--loss squared`, `--masks` and `--delay 50`: the connections of the sites to the coordinator
have a round-trip time of so many milliseconds (each site has its own network namespace, which needs root and `ip`). All
other arguments are overrides of `fco-run`. The models are compared bitwise with the simulation's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from fco_cli.commands.federation_demo import Loopback, call, compare, record

COLUMNS = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"
ROLES = ["--names", COLUMNS, "--positive", "num>0", "--missing", "?", "--drop", "ca"]  # two sites have few values of ca
CATEGORICAL = ["cp", "restecg", "slope", "thal"]
SITES = ["cleveland", "hungarian", "switzerland", "va"]
EICU, EICU_ROLES = "eicu_apache.csv", ["--label", "died", "--missing", "-1", "--drop", "hospital"]
EICU_SITES = ["east", "north", "south", "west"]


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Copy a stream; every chunk arrives `delay` seconds after it was read."""
    chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        while True:
            at, chunk = await chunks.get()
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            if not chunk:
                writer.close()
                return
            writer.write(chunk)
            await writer.drain()

    task = asyncio.ensure_future(write())
    with suppress(ConnectionError):
        while True:
            chunk = await reader.read(2**16)
            chunks.put_nowait((time.monotonic() + delay, chunk))
            if not chunk:
                break
        await task


def serve_in_thread(start) -> None:
    """Run an asyncio server, which `start` creates, in a thread."""

    async def serve() -> None:
        async with await start() as server:
            await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()


def to_coordinator(path: Path, port: int, delay: float) -> None:
    """Relay connections of a Unix socket, which namespaces share, to the coordinator."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(relay(reader, inner_writer, delay), relay(inner_reader, writer, delay))

    serve_in_thread(lambda: asyncio.start_unix_server(connect, str(path)))


def inside_namespace(path: Path, port: int, command: list[str]) -> None:
    """Run a command whose connections to the coordinator's port are relayed to the Unix socket."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outer_reader, outer_writer = await asyncio.open_unix_connection(str(path))
        await asyncio.gather(relay(reader, outer_writer, 0), relay(outer_reader, writer, 0))

    serve_in_thread(lambda: asyncio.start_server(connect, "localhost", port))
    sys.exit(subprocess.run(command, check=False).returncode)


class DelayedLoopback(Loopback):
    """Sites in network namespaces of their own, with slow connections to the coordinator."""

    delay = 0.0  # seconds in each direction

    def _command(self, party: str, arguments: Sequence[str]) -> list[str]:
        command = super()._command(party, arguments)
        if arguments[0] != "join" or not self.delay:
            return command
        port, path = int(self.address.rpartition(":")[2]), self.folder / "socket"
        if not path.exists():
            to_coordinator(path, port, self.delay)
        return ["unshare", "-n", sys.executable, __file__, "--inside", str(path), str(port), *command]


def main() -> None:
    if "--inside" in sys.argv[:2]:
        inside_namespace(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experiment", default="path", choices=["path", "glm"])
    parser.add_argument("--loss", default="logistic")
    parser.add_argument("--masks", action="store_true")
    parser.add_argument("--delay", type=float, default=0.0)
    arguments, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        measure(Path(name), arguments, overrides)


def write_tables(source: Path, folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Write a table per site; return their paths and the options that define the roles of the columns."""
    if not (source / EICU).exists():
        tables = {name: (source / f"processed.{name}.data").read_text() for name in SITES}
        roles = [*ROLES, *(word for column in CATEGORICAL for word in ("--categorical", column))]
    else:
        head, *lines = (source / EICU).read_text().splitlines(keepends=True)
        hospitals = sorted({line.partition(",")[0] for line in lines}, key=int)
        site_of = {hospital: EICU_SITES[k % len(EICU_SITES)] for k, hospital in enumerate(hospitals)}
        own = {name: [line for line in lines if site_of[line.partition(",")[0]] == name] for name in EICU_SITES}
        tables, roles = {name: head + "".join(lines) for name, lines in own.items()}, EICU_ROLES
    paths = {name: folder / f"{name}.csv" for name in tables}
    for name, table in tables.items():
        paths[name].write_text(table)
    return paths, roles


def measure(folder: Path, arguments: argparse.Namespace, overrides: list[str]) -> None:
    (folder / "pooled").mkdir()
    data, roles = write_tables(arguments.folder, folder / "pooled")
    last = list(data)[-1]
    run = [f"experiment={arguments.experiment}", f"task.loss={arguments.loss}", *overrides]
    run += ["hparams.fraction_bits=40"] if arguments.masks else []
    with DelayedLoopback(folder / "parties", data, roles, policy="research") as federation:
        federation.delay = arguments.delay / 2000
        federation.up()
        where = ["federation=flare", f"federation.sites=[{','.join(data)}]"]
        where += [f"federation.home={federation.home('coordinator')}", f"federation.masks={arguments.masks}"]
        for what in ("first", "second"):  # kernels are compiled in the first one
            start = time.monotonic()
            call("run", *run, *where, f"output_dir={folder}/{what}")
            seconds = time.monotonic() - start
            lines = (federation.home(last) / "audit.jsonl").read_text().splitlines()
            entries = [json.loads(line) for line in lines]
            entries = [one for one in entries if one["session"] == entries[-1]["session"]]
            kinds = Counter(one["kind"] for one in entries)
            received, sent = (sum(one[key] for one in entries) for key in ("bytes", "answer_bytes"))
            begin, end = (datetime.fromisoformat(entries[k]["at"]) for k in (0, -1))
            print(f"{what}: {seconds:.1f} s, {(end - begin).seconds} s from the first to the last request")
            print(
                f"{len(entries)} round trips at {last}: {dict(kinds)}; "
                f"{received / 1e6:.2f} MB received, {sent / 1e6:.2f} MB sent"
            )
    call("data", "convert", f"{folder}/pooled", f"{folder}/pooled.npz", *roles)
    call("run", *run, f"task.path={folder}/pooled.npz", f"output_dir={folder}/simulated")
    sites, simulated = record(folder / "second"), record(folder / "simulated")
    if arguments.experiment == "path":
        compare(sites, simulated)
    else:
        same = (sites / "covariance.npz").read_bytes() == (simulated / "covariance.npz").read_bytes()
        print(f"estimates and covariance matrices, bitwise: {'OK' if same else 'DIFFERENT'}")


main()
