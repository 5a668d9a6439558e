"""Sums over all ranks with half of the traffic: buffers are cut into parts, and each server sums one part.

    from herringbone_parallel.reduce.join.join import join
    from herringbone_parallel.reduce.join.settings import Settings

    with join(Settings.from_environment()) as engine:
        engine.all_reduce(gradients, op="average").wait()

This package imports no framework; the adaptors, such as `herringbone_parallel.torch`, do.
"""
