"""One site of a federation: it answers requests about its rows, and only the answers that its policy allows.

`site.py` checks and audits requests, `data.py` and `trainer.py` answer them, `rows.py` reads the site's file,
`memory.py` stores the client state between rounds and `audit.py` the audit file.
"""

__all__ = ["audit", "data", "memory", "rows", "site", "trainer"]
