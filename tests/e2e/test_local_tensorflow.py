"""The image for TensorFlow trains on digits: two ranks in one container, and one rank in each of two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from herringbone import TensorFlow

SCRIPT = """
import hashlib
import os

import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp

sdp.init()
keras.utils.set_random_seed(3)
with np.load(os.environ["SM_CHANNEL_TRAINING"] + "/digits.npz") as arrays:
    images, labels = arrays["images"], arrays["labels"]
test = np.arange(len(labels)) % 5 == 0
mine = np.flatnonzero(~test)[: 1436][sdp.rank() :: sdp.size()]
layers = [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
model = keras.Sequential(layers)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(sdp.DistributedOptimizer(keras.optimizers.Adam(3e-3)), loss, metrics=["accuracy"], jit_compile=False)
model.fit(images[mine], labels[mine], batch_size=32, epochs=15, verbose=0)
accuracy = model.evaluate(images[test], labels[test], verbose=0)[1]
weights = b"".join(weight.numpy().tobytes() for weight in model.weights)
print("trained", sdp.rank(), sdp.size(), f"{accuracy:.4f}", hashlib.sha256(weights).hexdigest())
"""


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.docker
@pytest.mark.slow
# The first build of the image takes minutes.
@pytest.mark.timeout(900)
def test_keras_trains_in_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build_image) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    for folder in ("src", "data"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    digits = load_digits()
    np.savez(tmp_path / "data" / "digits.npz", images=digits.data.astype("float32") / 16, labels=digits.target)
    image = build_image("tensorflow")

    def train(hosts: int, **launcher: object) -> list[str]:
        job = TensorFlow(
            entry_point="train.py",
            source_dir=str(tmp_path / "src"),
            instance_type="local",
            instance_count=hosts,
            image_uri=image,
            distribution={"smdistributed": {"dataparallel": {"enabled": True}}, **launcher},
        ).fit({"training": str(tmp_path / "data")}, logs=False)
        results = sorted(line.text.split() for line in job.logs() if line.text.startswith("trained "))
        assert [words[1:3] for words in results] == [["0", "2"], ["1", "2"]]
        assert results[0][3:] == results[1][3:], "the same weights on both ranks"
        return results[0][3:]

    accuracy, digest = train(1, mpi={"enabled": True, "processes_per_host": 2})
    assert float(accuracy) >= 0.95
    assert train(2) == [accuracy, digest]
