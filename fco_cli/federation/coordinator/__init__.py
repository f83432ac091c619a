"""The coordinator of a federation: it sends requests to the sites and combines their responses.

`sites.py` sends requests and validates responses, `remote_rows.py` evaluates models on the sites' rows, `clients.py`
provides the engine's clients, and `task.py` agrees with the sites on the preparation of their rows.
"""

__all__ = ["clients", "remote_rows", "sites", "task"]
