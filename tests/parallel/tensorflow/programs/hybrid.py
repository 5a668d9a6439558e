"""Models that are trained over replicas of a pipeline, and by one process that plays each replica in turn."""

from __future__ import annotations

import os
import time
from typing import Any

import horovod.tensorflow as hvd
import keras
import models
import msgspec
import numpy as np
import pipelines
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

from herringbone_parallel.tensorflow.model_parallel import state

STEPS = 3


def in_ways(name: str, placement: list[int], ways: list[tuple[bool, bool]]) -> list[Any]:
    """Train the same model once for each (averaged by the script, in a graph)."""
    results = []
    for by_script, in_graph in ways:
        smp.init()
        rank_state = state.get()
        rank_state.settings = msgspec.structs.replace(rank_state.settings, horovod=by_script)
        results.append(together(name, placement, in_graph))
        pipelines.another_job()
    return results


def together(name: str, placement: list[int], in_graph: bool) -> Any:
    """Train on this replica's share of each batch; return losses, gradients, and weights with their numbers."""
    case = models.CASES[name]
    # Each replica starts with other weights. They become equal when the model is partitioned.
    keras.utils.set_random_seed(1 + smp.dp_rank())
    model = case.distributed(placement)
    optimizer = keras.optimizers.SGD(0.1)
    averaged = hvd.allreduce if state.get().settings.horovod else tf.identity

    @smp.step
    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = case.loss(labels, model(inputs, training=True))
        return tape.gradient(loss, model.trainable_variables), loss

    def train(inputs: Any, labels: Any) -> Any:
        gradients, loss = step(inputs, labels)
        gradients = [averaged(gradient.accumulate()) for gradient in gradients]
        if gradients:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss.reduce_mean(), gradients

    run = tf.function(train) if in_graph else train
    losses, last_gradients = [], {}
    for batch in case.batches(STEPS):
        loss, gradients = run(*_share(batch, smp.dp_size(), smp.dp_rank()))
        losses.append(float(loss))
        last_gradients = {
            _number(v, model): np.array(tf.convert_to_tensor(g))
            for v, g in zip(model.trainable_variables, gradients, strict=True)
        }
    return losses, last_gradients, {_number(v, model): np.array(v.value) for v in model.variables}


def alone(name: str, replicas: int, microbatches: int) -> Any:
    """Train on whole batches in one process; each replica has its own moving statistics and seeds.

    Return the same figures as `together`, with the losses and the weights of each replica.
    """
    case = models.CASES[name]
    keras.utils.set_random_seed(1)
    model = case.plain()
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def backward(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = case.loss(labels, model(inputs, training=True))
        return tape.gradient(loss, model.trainable_variables), loss

    # The first call creates the variables: every replica starts with these values.
    model(_share(next(case.batches(1)), replicas * microbatches, 0)[0])
    states = [[np.array(variable.value) for variable in model.non_trainable_variables]] * replicas
    losses: list[Any] = [[] for _ in range(replicas)]
    gradients: list[Any] = []
    for batch in case.batches(STEPS):
        sums = []
        for replica in range(replicas):
            _assign(model, states[replica])
            share = _share(batch, replicas, replica)
            results = [backward(*_share(share, microbatches, number)) for number in range(microbatches)]
            states[replica] = [np.array(variable.value) for variable in model.non_trainable_variables]
            losses[replica].append(sum(float(loss) for _, loss in results) / microbatches)
            sums.append(_sum([replica_gradients for replica_gradients, _ in results]))
        gradients = [total / (replicas * microbatches) for total in _sum(sums)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    last_gradients = {_number(v, model): np.array(g) for v, g in zip(model.trainable_variables, gradients, strict=True)}
    weights = []
    for replica in range(replicas):
        _assign(model, states[replica])
        weights.append({_number(v, model): np.array(v.value) for v in model.variables})
    return losses, last_gradients, weights


def as_sagemaker_wrote_it(folder: str) -> Any:
    """Train as SMP v1's own hybrid scripts do, without `hvd.init`; save, train one more step, restore.

    Return the ranks and sizes of Horovod and SMP, the weights when they were saved, and the restored weights.
    """
    smp.init()
    ranks_and_sizes = hvd.rank(), hvd.size(), smp.dp_rank(), smp.dp_size()
    case = models.CASES["batch norm"]
    model = case.distributed([0, smp.pp_size() - 1])
    optimizer = keras.optimizers.Adam(0.01)

    @smp.step
    def get_gradients(inputs: Any, labels: Any) -> Any:
        loss = case.loss(labels, model(inputs, training=True))
        return optimizer.get_gradients(loss, model.trainable_variables), loss

    @tf.function
    def train_step(inputs: Any, labels: Any, first_batch: bool) -> Any:
        gradients, loss = get_gradients(inputs, labels)
        gradients = [hvd.allreduce(gradient.accumulate()) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
        return loss.reduce_mean()

    for number, batch in enumerate(case.batches(STEPS)):
        train_step(*_share(batch, smp.dp_size(), smp.dp_rank()), number == 0)
    manager = smp.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer), folder)
    saved = [np.array(variable.value) for variable in model.trainable_variables]
    manager.save()
    train_step(*_share(batch, smp.dp_size(), smp.dp_rank()), False)
    manager.restore()
    return ranks_and_sizes, saved, [np.array(variable.value) for variable in model.trainable_variables]


def nobody_averages() -> str:
    """Apply gradients that were not averaged over the replicas; return the error message."""
    return _train(lambda gradient: gradient)


def _train(averaged: Any) -> str:
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    optimizer = keras.optimizers.SGD(0.1)

    @smp.step
    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs))
        return tape.gradient(loss, model.trainable_variables)

    try:
        for _ in range(3):
            gradients = [
                averaged(gradient.accumulate()) for gradient in step(np.full((4, 6), 1.0 + smp.dp_rank(), "f4"))
            ]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "nothing"


def rank_3_dies() -> Any:
    smp.init()
    started = [0.0]

    def averaged(gradient: Any) -> Any:
        if not started[0]:
            started[0] = time.monotonic()
        elif smp.rank() == 3:
            os._exit(3)
        return hvd.allreduce(gradient)

    message = _train(averaged)
    return message, time.monotonic() - started[0]


def _sum(lists: list[Any]) -> list[Any]:
    return [
        sum(map(tf.convert_to_tensor, parts[1:]), tf.convert_to_tensor(parts[0])) for parts in zip(*lists, strict=True)
    ]


def _share(batch: Any, parts: int, number: int) -> Any:
    return tf.nest.map_structure(lambda whole: np.split(whole, parts)[number], batch)


def _assign(model: Any, values: Any) -> None:
    for variable, value in zip(model.non_trainable_variables, values, strict=True):
        variable.assign(value)


def _number(variable: Any, model: Any) -> int:
    everything = model.all_variables() if hasattr(model, "all_variables") else model.variables
    return next(n for n, other in enumerate(everything) if other is variable)
