"""Run a parameter server of TensorFlow's, which serves variables until its supervisor ends."""

from __future__ import annotations

import os
import sys

from herringbone_entry.processes import die_with


def main() -> None:
    """Serve as the task that `TF_CONFIG` names; never returns."""
    die_with(os.getppid())
    try:
        import tensorflow as tf
    except ImportError as error:
        sys.exit(
            f"parameter_server needs TensorFlow in {sys.executable}: {error}. Install it (`pip install tensorflow`)"
        )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()
