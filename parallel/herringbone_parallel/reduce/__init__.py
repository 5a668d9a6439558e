"""Sums over all ranks that move half the bytes: buffers are cut over servers, each of which adds up its part.

The public names are in `api`. This package imports no framework; `herringbone_parallel.torch` and the other adaptors
bring theirs.
"""
