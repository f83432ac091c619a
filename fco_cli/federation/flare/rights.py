"""Permissions of the parties in NVIDIA FLARE's terms, the only job that sites run, and the names in it."""

PROJECT, LEAD, ORGANIZATION = "fco", "lead@fco.local", "fco"
SITE_CLASS = "fco_cli.federation.flare.site.SiteExecutor"
SERVER_CLASS = "fco_cli.federation.flare.server.RelayController"
LAUNCH = "fco_cli.federation.flare.launch"
CHANNEL = "fco"  # of the requests of a run
READY, REQUEST, BYE = "ready", "ask", "bye"  # topics of the channel
SITE_JOB = {
    "format_version": 2,
    "executors": [{"tasks": ["*"], "executor": {"path": SITE_CLASS, "args": {}}}],
    "components": [],
}

# Permissions of every role; the lead may also submit jobs without code and manage its own.

RIGHTS = {
    "submit_job": "none", "clone_job": "none", "manage_job": "none", "download_job": "none",
    "view": "any", "operate": "none", "byoc": "none", "shell_commands": "none",
}  # fmt: skip
LEAD_RIGHTS = {"submit_job": "any", "manage_job": "n:submitter", "download_job": "n:submitter"}
ROLES = ("project_admin", "org_admin", "lead", "member")
