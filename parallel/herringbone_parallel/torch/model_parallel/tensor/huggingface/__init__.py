"""`smp.nn.huggingface`: translations of state dicts between Hugging Face models and `smp.nn.Distributed*`."""

from herringbone_parallel.torch.model_parallel.tensor.huggingface import gpt2

__all__ = ["gpt2"]
