"""A rank that stays: runs what it is told, with the environment that a launcher would have given it."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import sys
import traceback
from multiprocessing.connection import Connection


def serve(connection: Connection) -> None:
    import keras
    import tensorflow as tf

    import herringbone_parallel.tensorflow.model_parallel.api as smp
    from herringbone_parallel.reduce import session
    from herringbone_parallel.tensorflow.data_parallel import state

    tf.config.threading.set_inter_op_parallelism_threads(2)
    # Each job of a test ends with a collection, which need not go through all of TensorFlow.
    gc.collect()
    gc.freeze()
    while True:
        function, environment, args = connection.recv()
        before = dict(os.environ)
        os.environ.update(environment)
        module, name = function.rsplit(".", 1)
        # Where each thread is, for whoever reads why the test failed.
        faulthandler.dump_traceback_later(80)
        try:
            connection.send((True, getattr(importlib.import_module(module), name)(*args)))
        except Exception:  # noqa: BLE001  the test hears of it
            connection.send((False, traceback.format_exc()))
        finally:
            state.shutdown()
            smp.shutdown()
            faulthandler.cancel_dump_traceback_later()
            # A launched process is one rank of one job, and reads its environment once; this one plays many.
            session._settings = None
            os.environ.clear()
            os.environ.update(before)
            keras.backend.clear_session()


if __name__ == "__main__":
    with contextlib.suppress(EOFError):
        serve(Connection(int(sys.argv[1])))
