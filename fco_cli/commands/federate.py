"""fco-federate: create a federation of a coordinator and hospitals; each command prints the next step."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from fco_cli.commands.shell import Parser, add_columns, columns_of, handle_version_and_help, one_line_errors, print_line
from fco_cli.errors import UserError, require


def main() -> None:
    with one_line_errors("fco-federate"):
        if handle_version_and_help():
            return
        arguments = _parser().parse_args()
        from fco_cli.federation.settings import party_home

        try:
            arguments.command(arguments, party_home(arguments.home))
        except OSError as problem:
            if problem.filename is None:  # not about a file
                raise
            raise UserError(f"{problem.filename}: {problem.strerror}") from problem


def serve(arguments: argparse.Namespace, home: Path) -> None:
    """Run the server; create the federation first if it does not exist."""
    from fco_cli.federation.flare import enrollment, kits
    from fco_cli.federation.flare.certificates import Certificates

    if not (home / enrollment.FEDERATION_FILE).exists():
        print_line(f"creating the certificate authority in {home / 'ca'}; its key can admit sites: keep it safe")
        enrollment.create_federation(arguments.address, home)
    about = enrollment.read_federation(home)
    host = arguments.address.rpartition(":")[0]
    allowed = f"at {about['host']}, the host for which {home} was created"
    require(about["host"] == host, "the address", arguments.address, allowed)
    require(enrollment.is_port_free(arguments.address), "the address", arguments.address, "free; is it served already?")
    if not Certificates(home).issued:
        raise UserError(f"{home}: of an earlier version of fco; run fco-federate rotate, then approve all sites again")
    kit = kits.kit_path(home, host)
    kits.restrict(kit, True, home, {})
    print_line(f"serving {arguments.address}; fingerprint {about['fingerprint']}")
    own = Certificates(home).issued[host].sha256
    print_line(f"certificate of the server, which a hospital can pin (join --coordinator): SHA256:{own}")
    print_line(
        "next: a hospital runs `fco-federate request NAME` and sends NAME.request.zip; then run fco-federate approve"
    )
    kits.start(kit, "server", f"org={enrollment.ORGANIZATION}")


def approve(arguments: argparse.Namespace, home: Path) -> None:
    """Sign the request of a hospital."""
    from fco_cli.federation.flare import enrollment

    enrollment.read_federation(home)
    _print_signed(*enrollment.approve_site(arguments.request, home, arguments.replace))


def renew(arguments: argparse.Namespace, home: Path) -> None:
    """Issue a new certificate for the name and key of a site."""
    from fco_cli.federation.flare import enrollment

    enrollment.read_federation(home)
    _print_signed(*enrollment.renew(arguments.name, home))


def _print_signed(signed: Path, fingerprint: str) -> None:
    name = signed.name.removesuffix(".signed.zip")
    print_line(f"signed: {signed}")
    print_line(f"next: send it back, and send the fingerprint by another channel, such as telephone: {fingerprint}")
    print_line(
        f"at the hospital: fco-federate join {signed.name} --fingerprint {fingerprint} --data ROWS.csv   ({name})"
    )


def revoke(arguments: argparse.Namespace, home: Path) -> None:
    """Refuse the certificate of a site from now on."""
    from fco_cli.federation.flare import enrollment
    from fco_cli.federation.flare.certificates import Certificates

    own = (enrollment.read_federation(home)["host"], enrollment.LEAD)
    require(arguments.name not in own, "the name", arguments.name, "a site; fco-federate rotate replaces your own keys")
    Certificates(home).revoke(arguments.name)
    print_line(f"revoked: {arguments.name}; the server refuses it from now on, without a restart")
    print_line(f"next: to admit it again, the hospital runs fco-federate rotate {arguments.name} and sends its request")


def rotate(arguments: argparse.Namespace, home: Path) -> None:
    """Create new keys of a site, or of the coordinator."""
    from fco_cli.federation.flare import enrollment

    if arguments.name is None:
        enrollment.rotate_coordinator(home)
        print_line("the server and the lead have new keys; the lead's old key is refused from now on")
        print_line(
            "next: run fco-federate serve again; sites that pin the server's certificate edit site.yaml (coordinator)"
        )
    else:
        _print_request(enrollment.rotate_site(arguments.name, home))


def status(arguments: argparse.Namespace, home: Path) -> None:
    """Print the connected sites and the number of running jobs."""
    from fco_cli.federation.flare.link import federation_status

    sites, jobs = federation_status(home)
    print_line(f"sites: {', '.join(sites) or 'none'}; jobs running: {jobs}")
    if sites:
        print_line(
            f"next: fco-run task=custom task.loss=logistic federation=flare federation.sites=[{','.join(sites)}]"
        )


def request(arguments: argparse.Namespace, home: Path) -> None:
    """Create a key and a certificate request."""
    from fco_cli.federation.flare import enrollment

    valid = enrollment.NAME.fullmatch(arguments.name) is not None
    require(valid, "the name", arguments.name, "lowercase letters, digits and -, starting with a letter (at most 31)")
    _print_request(enrollment.request(arguments.name, home))


def _print_request(path: Path) -> None:
    print_line(f"request: {path} (the key stays in this folder)")
    print_line("next: send it to the coordinator, who sends NAME.signed.zip back; then: fco-federate join")


def join(arguments: argparse.Namespace, home: Path) -> None:
    """Join the federation with a signed request; does not return."""
    from fco_cli.data.plausibility import find_doubts
    from fco_cli.federation.flare import kits
    from fco_cli.federation.policy import POLICY_FILE, write_policy
    from fco_cli.federation.site.audit import AUDIT_FILE

    signed = Path(os.path.realpath(arguments.signed))
    require(signed.name.endswith(".signed.zip"), "the signed request", str(signed), "a file NAME.signed.zip")
    name = signed.name.removesuffix(".signed.zip")
    settings = {
        "name": name,
        "home": str(home),
        "data": os.path.realpath(arguments.data),
        "columns": asdict(columns_of(arguments)),
    }
    joined = kits.kit_path(home, name).exists()
    kit = kits.install_kit(signed, name, home, arguments.fingerprint)
    write_policy(
        home / POLICY_FILE, arguments.policy, joined, arguments.fingerprint,
        coordinator=arguments.coordinator, peers=_peers_of(arguments.peer), keep_numbers=arguments.keep_numbers,
    )  # fmt: skip
    site = kits.load_site(settings)  # read now, so that errors in the file are reported here
    kits.restrict(kit, False, home, settings)
    rows, features = site.file.data.x.shape
    for finding in find_doubts(site.file.data, censored=arguments.event is not None):
        print_line(f"warning: {finding.text}")
    print_line(f"{name}: {rows} rows, {features} features; policy {home / 'site.yaml'}, audit {home / AUDIT_FILE}")
    print_line(f"certificate of {name}, which other sites can pin (join --peer): SHA256:{kits.certificate_of(kit)}")
    print_line("joining; leave this running (docs/federation.md has a systemd unit). Next: the analyst's fco-run")
    kits.start(kit, "client", f"uid={name}", f"org={name.replace('-', '_')}")


def _peers_of(pairs: list[str]) -> dict[str, str | None]:
    """Return the fingerprints of the peers' certificates by name; None for a name without one."""
    peers = {}
    for pair in pairs:
        name, _, fingerprint = pair.partition("=")
        peers[name] = fingerprint or None
    return peers


def audit(arguments: argparse.Namespace, home: Path) -> None:
    """Print a summary of the audit file and of the ledger, or verify the audit file."""
    from fco_cli.federation.site.audit import AUDIT_FILE, verify
    from fco_cli.federation.site.report import audit_report

    if not (home / AUDIT_FILE).exists() and not list(home.glob("audit.*")):
        raise UserError(f"{home / AUDIT_FILE}: not found; no message was received")
    if arguments.verify:
        print_line(f"OK: {verify(home / AUDIT_FILE)} entries, none changed or removed")
        return
    for line in audit_report(home):
        print_line(line)


def _parser() -> argparse.ArgumentParser:
    about = __doc__.split(": ", 1)[1].capitalize() + " @FILE reads further arguments, one per line."
    parser = Parser(prog="fco-federate", description=about, fromfile_prefix_chars="@")
    parser.add_argument(
        "--home", type=Path, help="this party's folder; default: fco/federation in the user's data folder"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("serve", help="coordinator: run the server; create the federation first if necessary")
    one.add_argument("address", metavar="HOST:PORT", help="address by which the sites reach the server")
    one.set_defaults(command=serve)
    one = commands.add_parser("approve", help="coordinator: sign a hospital's request")
    one.add_argument("request", type=Path, metavar="NAME.request.zip")
    one.add_argument("--replace", action="store_true", help="the name has a certificate, which is then refused")
    one.set_defaults(command=approve)
    for command, text in (
        (renew, "coordinator: issue a new certificate to a site, for the same key"),
        (revoke, "coordinator: refuse a site from now on"),
    ):
        one = commands.add_parser(command.__name__, help=text)
        one.add_argument("name")
        one.set_defaults(command=command)
    one = commands.add_parser(
        "rotate", help="hospital: create a new key and request; coordinator: replace the coordinator's keys"
    )
    one.add_argument("name", nargs="?", help="of the site; without it, the coordinator's own keys")
    one.set_defaults(command=rotate)
    one = commands.add_parser("status", help="coordinator: list connected sites and running jobs")
    one.set_defaults(command=status)
    one = commands.add_parser("request", help="hospital: create a key and a certificate request")
    one.add_argument("name")
    one.set_defaults(command=request)
    one = commands.add_parser("join", help="hospital: join with the signed request and answer requests until stopped")
    one.add_argument("signed", type=Path, metavar="NAME.signed.zip")
    one.add_argument("--fingerprint", required=True, help="of the coordinator's authority, received by another channel")
    one.add_argument(
        "--data", type=Path, required=True, help="file with the rows (.csv, .parquet or .npz); they stay at the site"
    )
    one.add_argument(
        "--policy", choices=("strict", "research", "demo"),
        help="policy that is written to site.yaml when the site joins first, and never rewritten; default: strict",
    )  # fmt: skip
    one.add_argument(
        "--coordinator", metavar="SHA256:...", help="pin the server's certificate (site.yaml: coordinator)"
    )
    one.add_argument(
        "--peer", action="append", default=[], metavar="NAME[=SHA256:...]",
        help="a site of masked sums, and its certificate; others are then refused (site.yaml: peers); repeatable",
    )  # fmt: skip
    one.add_argument(
        "--keep-numbers", action="append", default=[], metavar="COLUMN",
        help="column of whole numbers that is a measurement, although it looks like record numbers; repeatable",
    )  # fmt: skip
    add_columns(one)
    one.set_defaults(command=join)
    one = commands.add_parser("audit", help="hospital: print who requested what, and the limits that are left")
    one.add_argument("--verify", action="store_true", help="only check that no entry was changed or removed")
    one.set_defaults(command=audit)
    return parser


if __name__ == "__main__":
    main()
