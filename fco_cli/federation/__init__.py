"""Federated runs between processes: each client's rows and state stay at its site.

`site/` and `coordinator/` exchange messages independently of the transport; `flare/` sends them over NVIDIA FLARE.
The other modules are common to all parties: wire format, schemas, policy, masks, noise and metrics.
"""

__all__ = ["coordinator", "flare", "masks", "message", "metrics", "noise", "policy", "schema", "settings", "site"]
