"""Federated runs between processes: each client's rows and state stay at its site.

`site/` and `coordinator/` exchange messages independently of the transport; `flare/` sends them over NVIDIA FLARE.
"""
