"""Train a ResNet in Keras on any number of hosts: ResNet-50 on --data, or a small one on scikit-learn's digits.

Usage: python examples/keras_resnet/submit.py [--hosts 2] [--json]
       python examples/keras_resnet/submit.py --data s3://bucket/imagenet --instance-type ml.p4d.24xlarge
           --hosts 4 --ranks 32

The script is the same for all jobs; only `distribution` and the hyperparameters differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from herringbone import TensorFlow

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common.submitting import arguments_of, layout_of, report, settings_of, train  # noqa: E402  the line above finds it

# The settings of ../resnet_imagenet, without `workers`: TensorFlow chooses the number of threads that read images.
FULL = {
    "model": "resnet50", "image-size": 224, "epochs": 90, "rank-batch": 256, "precision": "bf16", "optimizer": "lars",
    "lr": 9.0, "base-batch": 8192, "warmup": 5, "weight-decay": 5e-5, "smoothing": 0.1,
    "tune-batch-norm": True, "bn-base-batch": 256, "target": 0.759, "require-target": True,
}  # fmt: skip
TINY = {
    "model": "small", "image-size": 8, "augment": False, "epochs": 3, "rank-batch": 8, "global-batch": 32,
    "optimizer": "lars", "lr": 1.0, "trust": 0.01, "warmup": 0.5, "smoothing": 0.1,
    "tune-batch-norm": True, "bn-base-batch": 8,
}  # fmt: skip


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument(
        "--data", help="a folder or S3 address with train/ and test/, in the format of common/pictures.py"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="train the small network on --data, which needs images of 8 x 8"
    )
    arguments = parser.parse_args()
    settings = settings_of(arguments, FULL if arguments.data and not arguments.tiny else TINY)
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.data:
            from common import digits  # needs scikit-learn

            digits.write(Path(folder))
        data = arguments.data or folder
        channels = {"training": f"{data}/train", "test": f"{data}/test"}
        job = train(settings, channels, source=HERE / "src", framework=TensorFlow, **layout_of(arguments))
    report(job, ("eval_accuracy",), as_json=arguments.json)


if __name__ == "__main__":
    main()
