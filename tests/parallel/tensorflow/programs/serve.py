"""A long-lived rank: runs one function after another, each with the environment of a launched rank."""

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
    # `clear_session` collects garbage after each test. Frozen objects of TensorFlow need not be searched then.
    gc.collect()
    gc.freeze()
    while True:
        function, environment, args = connection.recv()
        before = dict(os.environ)
        os.environ.update(environment)
        module, name = function.rsplit(".", 1)
        # Before the limit of `ranks.py`, so that the log of a hanging test shows the position of each thread.
        faulthandler.dump_traceback_later(80)
        try:
            connection.send((True, getattr(importlib.import_module(module), name)(*args)))
        except Exception:  # noqa: BLE001  the answer carries it to the test
            connection.send((False, traceback.format_exc()))
        finally:
            state.shutdown()
            smp.shutdown()
            faulthandler.cancel_dump_traceback_later()
            # The library reads its environment once in a process. This process plays many ranks.
            session._settings = None
            os.environ.clear()
            os.environ.update(before)
            keras.backend.clear_session()


if __name__ == "__main__":
    with contextlib.suppress(EOFError):
        serve(Connection(int(sys.argv[1])))
