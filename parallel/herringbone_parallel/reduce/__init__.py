"""Sums over all ranks that move half the bytes: buffers are cut over servers, each of which adds up its part.

    from herringbone_parallel.reduce.join.join import join
    from herringbone_parallel.reduce.join.settings import Settings

    with join(Settings.from_environment()) as engine:
        engine.all_reduce(gradients, op="average").wait()

This package imports no framework; `herringbone_parallel.torch` and the other adaptors bring theirs.
"""
