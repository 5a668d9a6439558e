"""Tuning jobs that SageMaker searches, on instance types `ml.*`."""

from herringbone.tuner.service.tuning import ServiceTuning, attach_tuning

__all__ = ["ServiceTuning", "attach_tuning"]
