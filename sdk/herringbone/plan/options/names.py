"""Names of arguments that are no options of today: those of older SDKs, and those in the signatures of estimators."""

from __future__ import annotations

from typing import Any

from herringbone_contract.errors import UnsupportedError

# Names of SDK v1, with the names that SDK v2 (2020) gave to the same options.
RENAMED = {
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
    "train_volume_size": "volume_size",
    "train_volume_kms_key": "volume_kms_key",
    "distributions": "distribution",
    "image_name": "image_uri",
    "image": "image_uri",
    "script_mode": "entry_point",
    "session": "sagemaker_session",
}

# Options of SDK v2 for features that Herringbone does not have, with the value that switches each off.
LEFT_OUT: dict[str, Any] = {
    "rules": None,
    "debugger_hook_config": False,
    "profiler_config": None,
    "disable_profiler": True,
    "enable_sagemaker_metrics": False,
    "compiler_config": None,
    "training_recipe": None,
    "recipe_overrides": None,
}

# The arguments in an estimator's own signature: "did you mean" suggests these names, too.
ESTIMATOR_ARGUMENTS = (
    "entry_point",
    "source_dir",
    "image_uri",
    "instance_type",
    "instance_count",
    "hyperparameters",
    "distribution",
)

# Arguments of `HuggingFace` alone, in the order of an image's name.
HUGGING_FACE_VERSIONS = ("transformers_version", "pytorch_version", "tensorflow_version")
# The class of an estimator -> further arguments in its signature.
OWN_ARGUMENTS = {"TensorFlow": ("model_dir",), "HuggingFace": HUGGING_FACE_VERSIONS}


def refuse_left_out(name: str, value: Any) -> None:
    """Raise `UnsupportedError` for an option of SDK v2 that switches on a feature Herringbone does not have."""
    off = LEFT_OUT[name]
    # An old script that switches the feature off, or passes AWS's default on, asks for nothing.
    if value is None or value is off or value == []:
        return
    raise UnsupportedError(
        f"{name}: Herringbone does not have this feature, so a value other than {off!r} would be ignored in silence; "
        f"remove {name} (on ml.*, extra_request takes members of the service's request under their names there)"
    )
