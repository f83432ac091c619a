"""Transport over NVIDIA FLARE: enrollment of the parties, one job that relays messages, and guards.

`adapter.py` imports all names of FLARE. `enrollment.py` signs requests, and `certificates.py` lists the certificates
that the server accepts. `kits.py` installs startup kits with the permissions in `rights.py`. `launch.py` starts FLARE's
processes with the guards of `guards.py`, `jobs.py` and `handshakes.py`, which `self_test.py` attacks. `link.py` submits
the job from the analyst's process, and FLARE loads `server.py` and `site.py` in the job's processes. Startup kits name
these classes, so their module paths are part of the interface.
"""

__all__ = [
    "adapter",
    "certificates",
    "enrollment",
    "guards",
    "handshakes",
    "jobs",
    "kits",
    "launch",
    "link",
    "nvflare_cli",
    "rights",
    "self_test",
    "server",
    "site",
]
