"""Claims, the tests that decide them on records, and the ledger of verdicts."""
