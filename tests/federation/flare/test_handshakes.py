"""Failed handshakes, as the installed gRPC reports them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fco_cli.federation.flare.handshakes import ENVIRONMENT

pytest.importorskip("grpc")

HANDSHAKES_SCRIPT = """
import os, sys
from fco_cli.federation.flare.handshakes import MARK, report_failures

report_failures(lambda reason: print(reason, flush=True))
os.write(2, b"something else\\n")
os.write(2, b"I1117 ssl.cc:1] " + MARK.encode() + b"SSL_ERROR_SSL: no certificate\\n")
sys.exit("the last line")
"""


def test_failed_handshakes_are_reported_and_all_lines_shown():
    done = subprocess.run([sys.executable, "-c", HANDSHAKES_SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.stdout == "no certificate of this federation: SSL_ERROR_SSL: no certificate\n"
    assert [line.split("] ")[-1] for line in done.stderr.splitlines()] == [
        "something else", "Handshake failed with error SSL_ERROR_SSL: no certificate", "the last line",
    ]  # fmt: skip


SERVER_SCRIPT = """
import os, socket, ssl, sys, time
from concurrent import futures
import grpc
from fco_cli.federation.flare.handshakes import report_failures

reported = []
report_failures(reported.append)
certificate, key = (open(name, "rb").read() for name in sys.argv[1:])
server = grpc.server(futures.ThreadPoolExecutor(1))
credentials = grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
port = server.add_secure_port("localhost:0", credentials)
server.start()
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.set_alpn_protocols(["h2"])
try:
    with socket.create_connection(("localhost", port), 5) as raw, context.wrap_socket(raw) as secure:
        secure.recv(1)
except OSError:
    pass
end = time.monotonic() + 20
while not reported and time.monotonic() < end:
    time.sleep(0.05)
print(*reported, sep="\\n", flush=True)
os._exit(0)
"""


def test_the_wording_is_that_of_the_installed_grpc(signed, tmp_path):
    """If this fails, gRPC has changed its log: adapt MARK, otherwise the server does not audit such connections."""
    from cryptography.hazmat.primitives import serialization

    credentials = signed("localhost")
    (tmp_path / "one.crt").write_bytes(credentials.certificate.public_bytes(serialization.Encoding.PEM))
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "one.key").write_bytes(credentials.key.private_bytes(*plain))
    command = [sys.executable, "-c", SERVER_SCRIPT, str(tmp_path / "one.crt"), str(tmp_path / "one.key")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | ENVIRONMENT)
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in done.stdout, done.stderr
