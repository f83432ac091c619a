"""Digests of source code: of the definitions that a run executes, and of kernels.

Comments, docstrings, formatting and function annotations are ignored: they do not change results.
"""

from fco_cli.code_digest.digests import Definition, content_of, definition_of, digest_of, global_names, reachable

__all__ = ["Definition", "content_of", "definition_of", "digest_of", "global_names", "reachable"]
