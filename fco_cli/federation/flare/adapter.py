"""Adapter to NVIDIA FLARE: the versions that fco supports and every name of FLARE that it uses.

FLARE's internals change without notice, and the guards depend on them. All other modules import FLARE's names from
here. `check_flare` raises UserError if the installed version is not supported or a name is missing, and a party then
refuses to start. To support another version, run the tests marked `ci` of `tests/federation` with it and add it to
`SUPPORTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fco_cli.errors import UserError, install_extra

SUPPORTED = ("2.9.0",)  # versions that are tested; pyproject.toml requires one of them
MODULES = {  # names of FLARE, by module
    "nvflare.apis.event_type": ("EventType",),
    "nvflare.apis.executor": ("Executor",),
    "nvflare.apis.fl_component": ("FLComponent",),
    "nvflare.apis.fl_constant": ("AdminCommandNames", "FLContextKey", "ReservedTopic"),
    "nvflare.apis.impl.controller": ("Controller",),
    "nvflare.app_common.job_launcher.client_process_launcher": ("ClientProcessJobLauncher",),
    "nvflare.app_common.job_launcher.server_process_launcher": ("ServerProcessJobLauncher",),
    "nvflare.cli": ("run",),
    "nvflare.fuel.f3.cellnet.core_cell": ("CoreCell",),
    "nvflare.fuel.f3.cellnet.defs": ("CellChannel", "MessageHeaderKey", "MessagePropKey", "MessageType", "ReturnCode"),
    "nvflare.fuel.f3.cellnet.fqcn": ("FQCN",),
    "nvflare.fuel.f3.cellnet.identity": ("is_mtls_connection",),
    "nvflare.fuel.f3.cellnet.registry": ("Callback", "Registry"),
    "nvflare.fuel.f3.cellnet.utils": ("make_reply", "new_cell_message"),
    "nvflare.fuel.f3.comm_error": ("CommError",),
    "nvflare.fuel.f3.drivers.driver_params": ("DriverParams",),
    "nvflare.fuel.f3.endpoint": ("Endpoint",),
    "nvflare.fuel.f3.message": ("Message",),
    "nvflare.fuel.f3.sfm.conn_manager": ("ConnManager",),
    "nvflare.fuel.f3.sfm.constants": ("HandshakeKeys",),
    "nvflare.fuel.f3.streaming.stream_const": (
        "STREAM_ACK_TOPIC",
        "STREAM_CHANNEL",
        "STREAM_DATA_TOPIC",
        "STREAM_ERROR_TOPIC",
        "StreamHeaderKey",
    ),
    "nvflare.fuel.flare_api.flare_api": ("new_secure_session",),
    "nvflare.fuel.sec.authz": ("AuthorizationService",),
    "nvflare.fuel.utils.config_service": ("ConfigService",),
    "nvflare.lighter.tool_consts": ("NVFLARE_SIG_FILE", "NVFLARE_SUBMITTER_CRT_FILE"),
    "nvflare.private.admin_defs": ("error_reply",),
    "nvflare.private.defs": ("SysCommandTopic", "TrainingTopic"),
    "nvflare.private.fed.client.admin": ("FedAdminAgent", "RequestProcessor"),
    "nvflare.private.fed.client.client_req_processors": ("ClientRequestProcessors",),
    "nvflare.private.fed.client.communicator": ("Communicator",),
}
RENAMED: dict[str, tuple[str, str | None]] = {  # other names: the module, and the name in it; None: the module itself
    "AdminApi": ("nvflare.fuel.hci.client.api", None),
    "AioGrpcDriver": ("nvflare.fuel.f3.drivers.aio_grpc_driver", None),
    "GrpcDriver": ("nvflare.fuel.f3.drivers.grpc_driver", None),
    "AdminMessage": ("nvflare.private.admin_defs", "Message"),
    "TaskReturnCode": ("nvflare.apis.fl_constant", "ReturnCode"),
    "make_task_reply": ("nvflare.apis.shareable", "make_reply"),
}
ATTRIBUTES = {  # attributes that fco calls, replaces or sends
    "AdminApi": ("Authenticator",),
    "AdminCommandNames": ("ABORT", "CHECK_STATUS", "SHUTDOWN"),
    "AioGrpcDriver": ("get_grpc_client_credentials",),
    "AuthorizationService": ("authorize",),
    "CellChannel": ("AUX_COMMUNICATION", "CELLNET", "CLIENT_COMMAND", "CLIENT_MAIN", "RETURN_ONLY"),
    "ClientProcessJobLauncher": ("get_command",),
    "ClientRequestProcessors": ("request_processors",),
    "Communicator": ("client_registration",),
    "ConfigService": ("initialize",),
    "ConnManager": ("update_endpoint",),
    "CoreCell": (
        "APP_ID",
        "add_incoming_filter",
        "broadcast_request",
        "get_fqcn",
        "process_message",
        "register_request_cb",
        "send_request",
        "start",
    ),
    "DriverParams": ("CA_CERT", "HOST", "PORT"),
    "EventType": ("ABOUT_TO_START_RUN",),
    "FLContextKey": ("WORKSPACE_OBJECT",),
    "FQCN": ("join", "normalize"),
    "FedAdminAgent": ("_dispatch_request", "register_processor"),
    "GrpcDriver": ("get_grpc_client_credentials",),
    "HandshakeKeys": ("ENDPOINT_NAME",),
    "MessageHeaderKey": ("CHANNEL", "DESTINATION", "MSG_TYPE", "ORIGIN", "RETURN_CODE", "TOPIC"),
    "MessagePropKey": ("ENDPOINT",),
    "MessageType": ("REQ",),
    "ReservedTopic": ("ABORT_ASK", "END_RUN", "JOB_HEART_BEAT", "SYNC_RUNNER", "TASK_CHECK"),
    "ReturnCode": ("INVALID_REQUEST", "OK", "UNAUTHENTICATED"),
    "ServerProcessJobLauncher": ("get_command",),
    "StreamHeaderKey": ("CHANNEL", "SEQUENCE", "TOPIC"),
    "SysCommandTopic": ("REPORT_VERSION", "SHELL"),
    "TrainingTopic": (
        "ABORT",
        "CANCEL_RESOURCE",
        "CHECK_RESOURCE",
        "CHECK_STATUS",
        "DEPLOY",
        "NOTIFY_JOB_STATUS",
        "START_JOB",
    ),
}
PROGRAMS = {  # FLARE's programs: a party's main process and the process of a job
    "client": "nvflare.private.fed.app.client.client_train",
    "client_job": "nvflare.private.fed.app.client.worker_process",
    "server": "nvflare.private.fed.app.server.server_train",
    "server_job": "nvflare.private.fed.app.server.runner_process",
}
SOURCES = {name: (module, name) for module, names in MODULES.items() for name in names} | RENAMED


def __getattr__(name: str) -> Any:
    """Return a name of FLARE; it is imported on first use, as all of FLARE takes seconds."""
    if name not in SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load(name)


def _load(name: str) -> Any:
    module, original = SOURCES[name]
    try:
        imported = import_module(module)
        return imported if original is None else getattr(imported, original)
    except (AttributeError, ImportError) as problem:
        if isinstance(problem, ModuleNotFoundError) and problem.name == "nvflare":
            raise UserError(f"NVIDIA FLARE is not installed: {install_extra('federation')}") from None
        raise _missing(f"{module}.{original or ''}".rstrip(".")) from problem


def _missing(name: str) -> UserError:
    return UserError(f"NVIDIA FLARE: {name} is missing, so the guards cannot be installed; {_remedy()}")


def _remedy() -> str:
    return f"install a supported version: pip install nvflare=={SUPPORTED[-1]}"


def check_flare() -> None:
    """Raise UserError unless the version is supported and all names exist."""
    version = installed_version()
    if version not in SUPPORTED:
        raise UserError(f"NVIDIA FLARE {version} is not supported (supported: {', '.join(SUPPORTED)}); {_remedy()}")
    for name in SOURCES:
        value = _load(name)
        for attribute in ATTRIBUTES.get(name, ()):
            if not hasattr(value, attribute):
                raise _missing(f"{name}.{attribute}")


def installed_version() -> str:
    """Return the version of the installed FLARE."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nvflare")
    except PackageNotFoundError:
        raise UserError(f"NVIDIA FLARE is not installed: {install_extra('federation')}") from None


def core_cell(engine: Any) -> Any:
    """Return the cell of an engine."""
    return engine.get_cell().core_cell


@contextmanager
def requests_received_by(cell: Any, callback: Callable[[Any], Any]) -> Iterator[None]:
    """Pass all requests that a cell accepts to a callback."""
    original, cell.req_reg = cell.req_reg, _load("Registry")()
    cell.req_reg.set("*", "*", _load("Callback")(callback, (), {}))
    try:
        yield
    finally:
        cell.req_reg = original


def send_from_session(session: Any, **request: Any) -> Any:
    """Send a request from the session of an admin and return the reply."""
    return session.api.cell.core_cell.send_request(**request)


def open_connections(manager: Any, name: str | None) -> list[Any]:
    """Return the open connections of an endpoint of a ConnManager."""
    endpoint = manager.sfm_endpoints.get(name)
    return [] if endpoint is None else list(endpoint.connections)


def peer_certificate(connection: Any) -> bytes | None:
    """Return the certificate of the other end of a connection with mutual TLS; None for a connection without."""
    if not _load("is_mtls_connection")(connection.conn.connector.params):
        return None
    (pem,) = connection.conn.context.auth_context()["x509_pem_cert"]
    return pem


def close_connection(connection: Any) -> None:
    """Close a connection of a ConnManager."""
    connection.conn.close()
