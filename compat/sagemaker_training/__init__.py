"""The names of AWS's training toolkit that scripts and framework containers use, on top of Herringbone's contract.

    from sagemaker_training import environment
    environment.Environment().model_dir

Herringbone's own supervisor starts ranks, so the toolkit's modules `mpi`, `smdataparallel`, `torch_distributed`,
`pytorch_xla` and `process` are not here, and neither are its encoders for inference.
"""

from __future__ import annotations

from sagemaker_training import _alone

_alone.check("sagemaker-training")
