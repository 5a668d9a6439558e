"""`sagemaker_training.functions`: call a function with the arguments that it declares."""

from __future__ import annotations

import functools
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


def error_wrapper(function: Callable[..., Any], error_class: type[Exception]) -> Callable[..., Any]:
    """Return a function that raises `error_class` for whatever `function` raises, with that as its cause."""

    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:
            raise error_class(error) from error

    return wrapper
