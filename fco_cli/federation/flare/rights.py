"""What parties may do, by the names that NVIDIA FLARE has for it, and the one job that sites run."""

SITE_CLASS = "fco_cli.federation.flare.site.SiteExecutor"
SERVER_CLASS = "fco_cli.federation.flare.server.RelayController"
SITE_JOB = {
    "format_version": 2,
    "executors": [{"tasks": ["*"], "executor": {"path": SITE_CLASS, "args": {}}}],
    "components": [],
}

# What a party lets the others do, whoever they are: the lead submits jobs without code and manages those alone.

RIGHTS = {
    "submit_job": "none", "clone_job": "none", "manage_job": "none", "download_job": "none",
    "view": "any", "operate": "none", "byoc": "none", "shell_commands": "none",
}  # fmt: skip
LEADS = {"submit_job": "any", "manage_job": "n:submitter", "download_job": "n:submitter"}
ROLES = ("project_admin", "org_admin", "lead", "member")
