"""Simulation: rounds of a stack of jobs (`engine`), and its execution from start to records (`execute`)."""
