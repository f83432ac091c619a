"""Transport over NVIDIA FLARE: enrollment of the parties, one job that relays messages, and guards.

`enrollment.py` creates startup kits with the permissions in `rights.py`, `link.py` submits the job from the analyst's
process, FLARE loads `server.py` and `site.py` in the job's processes, and `guards.py` in all of its processes. Startup
kits name these classes, so their module paths are part of the interface.
"""

__all__ = ["enrollment", "guards", "link", "rights", "server", "site"]
