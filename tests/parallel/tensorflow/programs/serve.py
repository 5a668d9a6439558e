"""Long-lived ranks: each runs one function after another, with the environment of a launched rank.

Ranks are forks of one process that has imported TensorFlow, because an import takes 4 s of a core. That process has one
thread and runs no operation, so a fork is whole.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import random
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import herringbone_parallel.tensorflow.model_parallel.api as smp
from herringbone_parallel.reduce import session
from herringbone_parallel.tensorflow.data_parallel import state


def fork_ranks(requests: socket.socket) -> None:
    """Fork a rank for each connection that arrives, and answer with its process id, until no more can arrive."""
    # `clear_session` collects garbage after each test. Frozen objects of TensorFlow need not be searched then.
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"a fork would lose {threads - 1} threads"
    while descriptors := socket.recv_fds(requests, 32, 1)[1]:
        # Nobody waits for the ranks, so no other process gets the number of a dead one.
        process = os.fork()
        if not process:
            requests.close()
            # A fork has the random numbers of its siblings.
            random.seed()
            np.random.seed()
            with contextlib.suppress(EOFError):
                serve(Connection(descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])
        requests.send(str(process).encode())


def serve(connection: Connection) -> None:
    """Run the functions that come over a connection, and answer with their results."""
    tf.config.threading.set_inter_op_parallelism_threads(2)
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
    fork_ranks(socket.socket(fileno=int(sys.argv[1])))
