"""How fast the engine is, against an honest plain-NumPy loop. Run with `python -m benchmarks`."""
