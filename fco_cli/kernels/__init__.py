"""Kernels: compiling and caching, vector instructions, aligned buffers and small decompositions.

Nothing here depends on a problem or a method.
"""
