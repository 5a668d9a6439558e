"""Map names of AWS's SDK to Herringbone's, and resolve the names of a script."""

from __future__ import annotations

import ast

from herringbone.plan.frameworks import IMAGES

ESTIMATORS = ("Estimator", "Framework", *IMAGES)

# Classes of SDK v2 and the modules that have them, below `sagemaker`; those of a framework are in one of its name.
_MODULES = {
    "Estimator": ("estimator",),
    "Framework": ("estimator",),
    **{name: (name.lower(), f"{name.lower()}.estimator") for name in IMAGES},
    "TrainingInput": ("inputs", "", "session"),
    "remote": ("remote_function",),
    "FileSystemInput": ("inputs",),
    "ShuffleConfig": ("inputs",),
    "InstanceGroup": ("instance_group",),
    "TensorBoardOutputConfig": ("debugger", "debugger.debugger"),
    **dict.fromkeys(("ContinuousParameter", "IntegerParameter", "CategoricalParameter"), ("tuner", "parameter")),
    **dict.fromkeys((
        "HyperparameterTuner", "WarmStartConfig", "WarmStartTypes", "StrategyConfig", "HyperbandStrategyConfig",
        "TuningJobCompletionCriteriaConfig",
    ), ("tuner",)),
}  # fmt: skip
# A name of SDK v2 -> the name in `herringbone`.
COUNTERPARTS = {
    ".".join(filter(None, ("sagemaker", module, name))): name
    for name, modules in _MODULES.items()
    for module in modules
} | {
    "sagemaker.s3_input": "TrainingInput",
    "sagemaker.inputs.s3_input": "TrainingInput",
    "sagemaker.session.s3_input": "TrainingInput",
    "sagemaker.estimator.EstimatorBase": "Estimator",
}
# Functions of AWS's SDK whose result scripts pass to an estimator -> the option that takes the result.
_SESSIONS = ("Session", "session.Session", "LocalSession", "local.LocalSession")
ACCOUNT = dict.fromkeys((f"sagemaker.{name}" for name in _SESSIONS), "sagemaker_session") | dict.fromkeys(
    ("sagemaker.get_execution_role", "sagemaker.session.get_execution_role"), "role"
)
# What stays in a script, since both AWS's SDK and herringbone-sagemaker answer it: modules and names of `sagemaker`.
STAYS = (
    "Session", "LocalSession", "get_execution_role", "session", "local", "s3", "s3_utils", "utils", "image_uris", "job",
    "analytics", "TrainingJobAnalytics", "HyperparameterTuningJobAnalytics", "exceptions", "__version__",
)  # fmt: skip
# A part of a name without a counterpart -> what to do instead; the first that is in the name.
_INSTEAD = {
    "*": "import the names that the script uses, one by one",
    "sagemaker.train": "SDK v3 is not converted; write herringbone.PyTorch or Estimator, with the arguments of SDK v2",
    "chainer": "use PyTorch, TensorFlow, MXNet, or Estimator with image_uri",
    "rlestimator": "use Estimator with image_uri",
    "process": "run that step as a program of its own",
    "workflow": "write the steps as a program that calls fit() for each",
    "debugger": "remove it, with the arguments that take it; print metrics, and define them in metric_definitions",
    "jumpstart": "give the addresses of model and script yourself, in model_uri and source_dir",
    "role": "leave role out of Herringbone's estimators",
    "session": "give fit() a folder, file://data, or an address, s3://bucket/data",
    "s3": "give fit() a folder, file://data, or copy with boto3",
    "analytics": "write job.metrics(), or tuner.analytics().dataframe()",
    "image_uris": "write the image's name, or make one: herringbone images build",
    "_uris": "write the address itself",
    "utils": "jobs get new names by themselves, which begin with base_job_name",
    "amazon": "AWS's own algorithms run at AWS alone; write a script, or leave that part to AWS's SDK",
    "": "a job's model is the file estimator.model_data; give it to AWS's own SDK or to boto3",
}


def counterpart(name: str | None) -> str | None:
    """Return the name of Herringbone's for a name of AWS's SDK or for what belongs to it, None without one.

    >>> counterpart("sagemaker.tuner.WarmStartTypes.TRANSFER_LEARNING")
    'WarmStartTypes'
    """
    owner = name or ""
    while owner and owner not in COUNTERPARTS:
        owner = owner.rpartition(".")[0]
    return COUNTERPARTS.get(owner)


def is_object(name: str) -> bool:
    """Return True if a call of this name of AWS's SDK makes an object that Herringbone cannot take.

    >>> is_object("sagemaker.debugger.Rule.sagemaker"), is_object("sagemaker.model_uris.retrieve")
    (True, False)
    """
    return not _stays(name) and any(part[:1].isupper() for part in name.split("."))


def _stays(name: str) -> bool:
    return name.partition(".")[2].partition(".")[0] in STAYS


def why_left(name: str) -> str:
    """Return the reason why a name of AWS's SDK has no counterpart, and what to do instead."""
    why = "and neither AWS's hosting and processing nor its pipelines are"
    if _stays(name):
        why = "but AWS's SDK and herringbone-sagemaker answer it"
    return f"{name}: no counterpart here, {why}; {next(_INSTEAD[part] for part in _INSTEAD if part in name.lower())}"


class Bindings:
    """The meanings of a script's names, from its imports.

    >>> bindings = Bindings(ast.parse("from sagemaker.pytorch import PyTorch as P"))
    >>> bindings.full_name(ast.parse("P", mode="eval").body)
    'sagemaker.pytorch.PyTorch'
    """

    def __init__(self, tree: ast.AST) -> None:
        self._meanings: dict[str, str] = {}
        self.starred: set[str] = set()  # names that `from MODULE import *` binds, as far as they are known here
        for node in ast.walk(tree):
            # A relative import never means AWS's SDK, even if a module of that name is there.
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._meanings[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    if alias.name == "*":
                        known = [*COUNTERPARTS, *(f"sagemaker.{name}" for name in STAYS)]
                        found = [name.rpartition(".") for name in known if name.rpartition(".")[0] == node.module]
                        self._meanings.update({name: f"{module}.{name}" for module, _, name in found})
                        self.starred.update(name for _, _, name in found)
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
