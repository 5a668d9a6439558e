"""Measure a training script without training: one step on tensors without values, written as a `Measurement`."""
