"""Compilation and caching of kernels, vector instructions, aligned buffers and small matrix decompositions.

This package does not depend on problems or algorithms.
"""
