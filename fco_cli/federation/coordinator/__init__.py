"""The coordinator of a federation: it sends requests to the sites and combines their responses.

`sites.py` sends requests and validates responses, `remote_rows.py` evaluates models on the sites' rows, `clients.py`
provides the engine's clients, and `task.py` agrees with the sites on the preparation of their rows. `hessians.py`
requests Hessians; `responses.py` holds responses and their masked sums.
"""

__all__ = ["clients", "hessians", "remote_rows", "responses", "sites", "task"]
