"""Container images that run jobs: find one here, make one, prove that one can.

    from herringbone import images

    engine = images.connect()
    images.find(engine, framework="pytorch", device="cpu")      # 'herringbone/pytorch:2.13.0-cpu-1f0c…', or None

`engine` is always docker-py's `APIClient`; this package imports docker-py when it is asked for one.
"""

from herringbone.images.engine import connect
from herringbone.images.find import find
from herringbone.images.labels import Label

__all__ = ["Label", "connect", "find"]
