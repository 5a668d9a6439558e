"""Save and load a state, by AWS's names."""

from torch.sagemaker.distributed.checkpoint import state_dict_loader, state_dict_saver  # noqa: F401
