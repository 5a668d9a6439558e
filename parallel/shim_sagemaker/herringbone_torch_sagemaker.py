"""Make `torch.sagemaker` importable in the ranks of a job, and in their children.

torch calls `extend` at the end of its own import: it looks for installed packages with an entry point in the group
`torch.backends`, also in the folders of PYTHONPATH. docs/decisions/041-torch-sagemaker.md has the reasons.
"""

from pathlib import Path


def extend() -> None:
    """Add the folder with `sagemaker` to torch's own, last, so that a real `torch.sagemaker` in an image wins."""
    import torch

    torch.__path__.append(str(Path(__file__).parent / "inside_torch"))
