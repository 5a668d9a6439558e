"""Sums over all ranks with half of the traffic: buffers are cut into parts, and each server sums one part.

The public names are in `api`. This package imports no framework; the adaptors, such as `herringbone_parallel.torch`,
do.
"""
