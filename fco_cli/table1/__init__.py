"""Table 1 (`experiment=table1`, docs/inference.md): the columns of every client, with small counts suppressed.

Clients send counts, means, squared deviations and, for medians, counts of values below given edges; no rows.
"""
