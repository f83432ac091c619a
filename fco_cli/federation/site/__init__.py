"""One site of a federation: it answers requests about its rows, and only the answers that its policy allows.

`site.py` checks and audits requests, `data.py` and `trainer.py` answer them, `disclosure.py` decides what an answer may
contain, `ledger.py` counts answers over all runs, `rows.py` reads the site's file, `memory.py` stores the client state
between rounds, `audit.py` writes the audit file and `report.py` summarizes it.
"""

__all__ = ["audit", "data", "disclosure", "ledger", "memory", "report", "rows", "site", "trainer"]
