"""The names of AWS's training toolkit that scripts and framework containers use, on top of Herringbone's contract.

    from sagemaker_training import environment
    environment.Environment().model_dir

Herringbone's own supervisor starts ranks, so the toolkit's modules `mpi`, `smdataparallel`, `torch_distributed`,
`pytorch_xla` and `process` are not here, and neither are its encoders for inference.
"""

from __future__ import annotations

from importlib.metadata import distributions

_real = next((found.version for found in distributions(name="sagemaker-training")), None)
if _real is not None:
    raise ImportError(
        f"sagemaker-training {_real} and herringbone-sagemaker are both installed, and have the same files. Keep one:\n"
        "  Herringbone's: pip uninstall -y sagemaker-training; pip install --force-reinstall ./compat (in a checkout)\n"
        f"  AWS's: pip uninstall -y herringbone-sagemaker; pip install --force-reinstall sagemaker-training=={_real}"
    )
