"""Container images that run jobs: find one here, make one, prove that one can.

    from herringbone.images.build import build
    from herringbone.engine.docker_py import connect
    from herringbone.images.recipe import make_recipe

    build(connect(), make_recipe("pytorch"), print)

`engine` is always docker-py's `APIClient`; this package imports docker-py when it is asked for one. Nothing is imported
here: who submits a job needs a label's name, and waits.
"""
