"""Container images that run jobs: find one here, make one, prove that one can.

    from herringbone import images

    engine = images.connect()
    images.find(engine, framework="pytorch", device="cpu")      # 'herringbone/pytorch:2.13.0-cpu-1f0c…', or None
    images.build(engine, images.make_recipe("pytorch"), print)

`engine` is always docker-py's `APIClient`; this package imports docker-py when it is asked for one.
"""

from herringbone.images.bake import bake
from herringbone.images.build import Image, build
from herringbone.images.engine import connect
from herringbone.images.find import choose, filters, find
from herringbone.images.labels import CONTRACT, Label
from herringbone.images.recipe import DEVICES, FRAMEWORKS, Recipe, make_recipe

__all__ = [
    # Find one, or choose among those that an engine lists for the filters.
    "find",
    "choose",
    "filters",
    # Make one.
    "FRAMEWORKS",
    "DEVICES",
    "Recipe",
    "make_recipe",
    "build",
    "bake",
    "Image",
    # What they all ask, and how images say what they are.
    "connect",
    "Label",
    "CONTRACT",
]
