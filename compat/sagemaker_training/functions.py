"""`sagemaker_training.functions`: call a function with the arguments that it declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def matching_args(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a function has parameters for; all of them if it takes `**keywords`.

    >>> matching_args(lambda epochs: 0, {"epochs": 3, "lr": 0.1})
    {'epochs': 3}
    """
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return dict(values)
    return {parameter.name: values[parameter.name] for parameter in parameters if parameter.name in values}
