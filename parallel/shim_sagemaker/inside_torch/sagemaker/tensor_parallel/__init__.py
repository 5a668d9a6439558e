"""The class of a transformed model's layers, by AWS's names."""

from torch.sagemaker.tensor_parallel import transformer  # noqa: F401
