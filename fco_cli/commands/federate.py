"""fco-federate: a coordinator and hospitals become a federation; each command says what comes next."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from fco_cli.commands.columns import add_columns, columns_of
from fco_cli.commands.shell import Parser, answered, one_line_endings
from fco_cli.commands.streams import say
from fco_cli.errors import UserError, require


def main() -> None:
    with one_line_endings("fco-federate"):
        if answered():
            return
        arguments = _parser().parse_args()
        from fco_cli.federation.settings import party_home

        try:
            arguments.command(arguments, party_home(arguments.home))
        except OSError as problem:
            if problem.filename is None:  # not of a file
                raise
            raise UserError(f"{problem.filename}: {problem.strerror}") from problem


def serve(arguments: argparse.Namespace, home: Path) -> None:
    from fco_cli.federation.flare import enrol

    founded = home / "founded.json"
    if not founded.exists():
        say(f"making the certificate authority in {home / 'ca'}: whoever holds its key can admit sites; keep it safe")
        enrol.found(arguments.address, home)
    about = json.loads(founded.read_text(encoding="utf-8"))
    host = arguments.address.rpartition(":")[0]
    require(about["host"] == host, "the address", arguments.address, f"of {about['host']}, for which {home} was made")
    require(enrol.is_port_free(arguments.address), "the address", arguments.address, "free: is it served already?")
    enrol.restrict(enrol.kit_path(home, host), True, home, {})
    say(f"serving {arguments.address}; fingerprint {about['fingerprint']}")
    say("next: a hospital runs `fco-federate request NAME` and sends NAME.request.zip; here: fco-federate approve")
    enrol.start(enrol.kit_path(home, host), "server", f"org={enrol.ORGANIZATION}")


def approve(arguments: argparse.Namespace, home: Path) -> None:
    from fco_cli.federation.flare import enrol

    if not (home / "founded.json").exists():
        raise UserError(f"{home}: there is no certificate authority yet: fco-federate serve HOST:PORT makes one")
    signed, fingerprint = enrol.approve(arguments.request, home)
    name = signed.name.removesuffix(".signed.zip")
    say(f"signed: {signed}")
    say(f"next: send it back, and tell them by another channel, the telephone for one: {fingerprint}")
    say(f"there: fco-federate join {signed.name} --fingerprint {fingerprint} --data ROWS.csv   ({name})")


def status(arguments: argparse.Namespace, home: Path) -> None:
    from fco_cli.federation.flare.link import federation_status

    sites, jobs = federation_status(home)
    say(f"sites: {', '.join(sites) or 'none'}; jobs running: {jobs}")
    if sites:
        say(f"next: fco-run task=custom task.loss=logistic federation=flare federation.sites=[{','.join(sites)}]")


def request(arguments: argparse.Namespace, home: Path) -> None:
    from fco_cli.federation.flare import enrol

    right = enrol.NAME.fullmatch(arguments.name) is not None
    require(right, "the name", arguments.name, "of small letters, digits and -, the first a letter")
    made = enrol.request(arguments.name, home)
    say(f"request: {made} (the key stays in this folder)")
    say("next: send it to the coordinator, who sends NAME.signed.zip back; then: fco-federate join")


def join(arguments: argparse.Namespace, home: Path) -> None:
    from fco_cli.federation.flare import enrol

    signed = Path(os.path.realpath(arguments.signed))
    require(signed.name.endswith(".signed.zip"), "the signed request", str(signed), "a file NAME.signed.zip")
    name = signed.name.removesuffix(".signed.zip")
    own = {
        "name": name,
        "home": str(home),
        "data": os.path.realpath(arguments.data),
        "columns": asdict(columns_of(arguments)),
    }
    site = enrol.load_site(own)  # here, where somebody can mend what is wrong with the file
    kit = enrol.kit_path(home, name)
    if not kit.exists():
        if not signed.exists():
            raise UserError(f"{signed}: no such file")
        enrol.package(signed, name, home, arguments.fingerprint)
    enrol.restrict(kit, False, home, own)
    rows, features = site.file.data.x.shape
    say(f"{name}: {rows} rows, {features} features; policy {home / 'site.yaml'}, audit {home / enrol.AUDIT_FILE}")
    say("joining; leave this running (docs/federation.md has a systemd unit). Next: the analyst's fco-run")
    enrol.start(kit, "client", f"uid={name}", f"org={name.replace('-', '_')}")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fco-federate", description=__doc__)
    parser.add_argument("--home", type=Path, help="this party's folder; default: fco/federation of the user's data")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("serve", help="coordinator: run the server; the first time, found the federation")
    one.add_argument("address", metavar="HOST:PORT", help="as the sites reach it")
    one.set_defaults(command=serve)
    one = commands.add_parser("approve", help="coordinator: sign a hospital's request")
    one.add_argument("request", type=Path, metavar="NAME.request.zip")
    one.set_defaults(command=approve)
    one = commands.add_parser("status", help="coordinator: who has joined, what runs")
    one.set_defaults(command=status)
    one = commands.add_parser("request", help="hospital: make a key and a request to be signed")
    one.add_argument("name")
    one.set_defaults(command=request)
    one = commands.add_parser("join", help="hospital: join with the signed request, and answer from then on")
    one.add_argument("signed", type=Path, metavar="NAME.signed.zip")
    one.add_argument("--fingerprint", required=True, help="of the coordinator's authority, told by another channel")
    one.add_argument("--data", type=Path, required=True, help="the rows: .csv, .parquet or .npz; they stay here")
    add_columns(one)
    one.set_defaults(command=join)
    return parser


if __name__ == "__main__":
    main()
