"""Train a Mask R-CNN on any number of hosts. By default, train a small one on generated pictures.

Usage: python examples/mask_rcnn/submit.py [--framework NAME] [--hosts 2] [--set NAME=VALUE] [--json]
       python examples/mask_rcnn/submit.py --train coco/train2017 --test coco/val2017 [--weights folder]
           --instance-type ml.p4d.24xlarge --hosts 1 --ranks 8

The script is the same for all jobs; only `distribution` and the hyperparameters differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import shapes

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common.submitting import (  # noqa: E402  the line above finds it
    arguments_of,
    framework_of,
    layout_of,
    report,
    settings_of,
    train,
)

# torchvision's published settings, two images on each of 8 GPUs, except the decay: a cosine instead of two steps.
FULL = {
    "model": "resnet50", "epochs": 26, "rank-batch": 2, "lr": 0.02, "base-batch": 16, "warmup": 0.07,
    "weight-decay": 1e-4,
}  # fmt: skip
TINY = {
    "model": "small", "epochs": 3, "rank-batch": 1, "global-batch": 4, "lr": 0.02, "warmup": 0.2, "weight-decay": 1e-4,
}  # fmt: skip


def main() -> None:
    parser = arguments_of(__doc__, HERE)
    parser.add_argument("--train", help="a folder or S3 address with images and COCO's instances (default: generated)")
    parser.add_argument("--test", help="a folder or S3 address, for the evaluation")
    parser.add_argument(
        "--weights", help="a folder or S3 address with one file: a state dict that torchvision publishes"
    )
    arguments = parser.parse_args()
    if (arguments.train is None) != (arguments.test is None):
        sys.exit("--train and --test need each other: give both or none")
    if arguments.weights and arguments.framework != "pytorch":
        sys.exit(f"--weights is a state dict of PyTorch, which {arguments.framework} does not read: leave it out")
    settings = settings_of(arguments, FULL if arguments.train else TINY)
    if arguments.train and arguments.framework == "pytorch":
        settings.setdefault("workers", 4)
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.train:
            shapes.write(Path(folder) / "train", pictures=100, seed=1)
            shapes.write(Path(folder) / "test", pictures=20, seed=2)
        data = {"training": arguments.train or f"{folder}/train", "test": arguments.test or f"{folder}/test"}
        if arguments.weights:
            data["weights"] = arguments.weights
        job = train(settings, data, **framework_of(arguments, HERE), **layout_of(arguments))
    report(job, ("eval_mask_ap", "eval_box_ap"), as_json=arguments.json)


if __name__ == "__main__":
    main()
