"""Map names of AWS's SDK to Herringbone's, and resolve the names of a script."""

from __future__ import annotations

import ast

from herringbone.plan.frameworks import IMAGES

# Classes of SDK v2 and the modules that have them, below `sagemaker`; those of a framework are in one of its name.
_MODULES = {
    "Estimator": ("estimator",),
    "Framework": ("estimator",),
    **{name: (name.lower(), f"{name.lower()}.estimator") for name in IMAGES},
    "TrainingInput": ("inputs", ""),
    "FileSystemInput": ("inputs",),
    "ShuffleConfig": ("inputs",),
    "InstanceGroup": ("instance_group",),
    "TensorBoardOutputConfig": ("debugger", "debugger.debugger"),
    **dict.fromkeys(("ContinuousParameter", "IntegerParameter", "CategoricalParameter"), ("tuner", "parameter")),
    **dict.fromkeys(
        (
            "HyperparameterTuner",
            "WarmStartConfig",
            "WarmStartTypes",
            "StrategyConfig",
            "HyperbandStrategyConfig",
            "TuningJobCompletionCriteriaConfig",
        ),
        ("tuner",),
    ),
}
# A name of SDK v2 -> the name in `herringbone`.
COUNTERPARTS = {
    ".".join(filter(None, ("sagemaker", module, name))): name
    for name, modules in _MODULES.items()
    for module in modules
}

# Functions of AWS's SDK whose result scripts pass to an estimator -> the option that takes the result.
ACCOUNT = {
    "sagemaker.get_execution_role": "role",
    "sagemaker.session.get_execution_role": "role",
    "sagemaker.Session": "sagemaker_session",
    "sagemaker.session.Session": "sagemaker_session",
    "sagemaker.LocalSession": "sagemaker_session",
    "sagemaker.local.LocalSession": "sagemaker_session",
}

_OTHER_FRAMEWORKS = ("Chainer", "RLEstimator")


def why_left(name: str) -> str:
    """Return the reason why a name of AWS's SDK has no counterpart, and the remedy."""
    class_name = name.rpartition(".")[2]
    if class_name in _OTHER_FRAMEWORKS:
        return f"{name}: no class of that name here; use PyTorch, TensorFlow, MXNet, or Estimator with image_uri"
    if class_name == "remote" and name.startswith("sagemaker.remote_function."):
        return f"{name}: write herringbone.remote, with the options of herringbone.Estimator"
    if name.startswith("sagemaker.train"):
        return f"{name}: SDK v3 is not converted; write herringbone.PyTorch or Estimator, with the arguments of SDK v2"
    return f"{name}: no counterpart here; Herringbone trains, and leaves the rest to the SDK or to boto3"


class Bindings:
    """The meanings of a script's names, from its imports.

    >>> bindings = Bindings(ast.parse("from sagemaker.pytorch import PyTorch as P"))
    >>> bindings.full_name(ast.parse("P", mode="eval").body)
    'sagemaker.pytorch.PyTorch'
    """

    def __init__(self, tree: ast.AST) -> None:
        self._meanings: dict[str, str] = {}
        for node in ast.walk(tree):
            # A relative import never means AWS's SDK, even if a module of that name is there.
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._meanings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    top_package = alias.name.partition(".")[0]
                    # `import a.b` binds `a`, and `import a.b as c` binds `a.b` to `c`.
                    self._meanings[alias.asname or top_package] = alias.name if alias.asname else top_package

    def full_name(self, node: ast.AST) -> str | None:
        """Return the dotted name that an expression means, None for an expression that is no imported name."""
        if isinstance(node, ast.Name):
            return self._meanings.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.full_name(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None


def is_aws(name: str | None) -> bool:
    """Return True if a dotted name belongs to AWS's SDK."""
    return name is not None and name.partition(".")[0] == "sagemaker"
