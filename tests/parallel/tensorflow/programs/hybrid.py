"""Models that are trained over replicas of a pipeline, and by one process that plays the replicas in turn."""

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
    told = []
    for by_script, in_graph in ways:
        smp.init()
        here = state.get()
        here.settings = msgspec.structs.replace(here.settings, horovod=by_script)
        told.append(together(name, placement, in_graph))
        pipelines.another_job()
    return told


def together(name: str, placement: list[int], in_graph: bool) -> Any:
    """Train on this replica's share of each batch; return losses, gradients, and weights with their places."""
    case = models.CASES[name]
    # Other weights on each replica at first, until the model is partitioned.
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
    losses, found = [], {}
    for batch in case.batches(STEPS):
        loss, gradients = run(*_share(batch, smp.dp_size(), smp.dp_rank()))
        losses.append(float(loss))
        found = {_place(v, model): np.array(g) for v, g in zip(model.trainable_variables, gradients, strict=True)}
    return losses, found, {_place(v, model): np.array(v.value) for v in model.variables}


def alone(name: str, replicas: int, microbatches: int) -> Any:
    """Train on whole batches in one process; each replica's part changes moving statistics and seeds of its own.

    Returns what `together` does, with the losses and the weights of each replica.
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

    # The variables are made before the first step: their first values are every replica's.
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
            sums.append(_sum([found for found, _ in results]))
        gradients = [total / (replicas * microbatches) for total in _sum(sums)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    found = {_place(v, model): np.array(g) for v, g in zip(model.trainable_variables, gradients, strict=True)}
    weights = []
    for replica in range(replicas):
        _assign(model, states[replica])
        weights.append({_place(v, model): np.array(v.value) for v in model.variables})
    return losses, found, weights


def as_sagemaker_wrote_it(folder: str) -> Any:
    """Train as SMP v1's own hybrid scripts do, without `hvd.init`; save, train on, restore.

    Returns who Horovod says this is, the weights when they were saved, and those that were restored.
    """
    smp.init()
    who = hvd.rank(), hvd.size(), smp.dp_rank(), smp.dp_size()
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
    return who, saved, [np.array(variable.value) for variable in model.trainable_variables]


def nobody_averages() -> str:
    """Apply gradients that no replica has averaged, and return what is said of it."""
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
    begin = [0.0]

    def averaged(gradient: Any) -> Any:
        if not begin[0]:
            begin[0] = time.monotonic()
        elif smp.rank() == 3:
            os._exit(3)
        return hvd.allreduce(gradient)

    said = _train(averaged)
    return said, time.monotonic() - begin[0]


def _sum(lists: list[Any]) -> list[Any]:
    return [
        sum(map(tf.convert_to_tensor, parts[1:]), tf.convert_to_tensor(parts[0])) for parts in zip(*lists, strict=True)
    ]


def _share(batch: Any, parts: int, number: int) -> Any:
    return tf.nest.map_structure(lambda whole: np.split(whole, parts)[number], batch)


def _assign(model: Any, values: Any) -> None:
    for variable, value in zip(model.non_trainable_variables, values, strict=True):
        variable.assign(value)


def _place(variable: Any, model: Any) -> int:
    everything = model.all_variables() if hasattr(model, "all_variables") else model.variables
    return next(n for n, other in enumerate(everything) if other is variable)
