"""Speed of the engine relative to a plain NumPy loop. Run with `python -m benchmarks`."""
