"""Print, as JSON, the public names of the modules of the released `sagemaker` package that train.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/peer/ask_names.py sagemaker.s3 ...`.
For each module: name -> {"init": parameters, "members": {name: parameters}} of a class, or {"parameters": ...}.
"""

import importlib
import inspect
import json
import logging
import os
import sys
import warnings

os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true", SAGEMAKER_SUPPRESS_V2_WARNING="1")
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")


def parameters(called):
    try:
        found = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return []
    return [one.name for one in found if one.name not in ("self", "cls") and one.kind not in (2, 4)]


def described(thing):
    if not inspect.isclass(thing):
        return {"parameters": parameters(thing)}
    members = {}
    for name in filter(lambda name: not name.startswith("_"), dir(thing)):
        found = inspect.getattr_static(thing, name)
        members[name] = parameters(getattr(found, "__func__", found)) if callable(getattr(thing, name, None)) else []
    return {"init": parameters(thing.__init__), "members": members}


def names(module):
    return {
        name: described(thing)
        for name, thing in vars(importlib.import_module(module)).items()
        if not name.startswith("_")
        and callable(thing)
        and (getattr(thing, "__module__", "").startswith(f"{module}.") or getattr(thing, "__module__", "") == module)
    }


if __name__ == "__main__":
    json.dump({module: names(module) for module in sys.argv[1:]}, sys.stdout)
