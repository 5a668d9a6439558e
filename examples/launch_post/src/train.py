"""Train the model of the announcement, split in two. The script is written for TensorFlow 2.3."""

import argparse
import os

import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Conv2D, Dense, Flatten

# smdistributed: import the library
import smdistributed.modelparallel.tensorflow as smp

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch_size", type=int, default=64)
args, _ = parser.parse_known_args()

tf.random.set_seed(1234)

# smdistributed: initialize
smp.init()

with np.load(os.path.join(os.environ["SM_CHANNEL_TRAINING"], "digits.npz")) as arrays:
    (x_train, y_train), (x_test, y_test) = [[arrays[f"{name}_{part}"] for name in "xy"] for part in ("train", "test")]
x_train, x_test = x_train / 255.0, x_test / 255.0

# Add a channels dimension
x_train = x_train[..., tf.newaxis]
x_test = x_test[..., tf.newaxis]

# smdistributed: seed the shuffle with smp.dp_rank(), and drop_remainder, so that microbatches divide every batch
train_ds = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train))
    .shuffle(10000, seed=smp.dp_rank())
    .batch(args.batch_size, drop_remainder=True)
)
test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(40, drop_remainder=True)


# smdistributed: smp.DistributedModel instead of tf.keras.Model
class MyModel(smp.DistributedModel):
    def __init__(self):
        super(MyModel, self).__init__()
        self.conv = Conv2D(32, 3, activation="relu")
        self.flatten = Flatten()
        self.dense1 = Dense(128)
        self.dense2 = Dense(10)

    def call(self, x, training=None):
        x = self.conv(x)
        x = self.flatten(x)
        x = self.dense1(x)
        return self.dense2(x)


model = MyModel()

loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()
train_loss = tf.keras.metrics.Mean(name="train_loss")
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


# smdistributed: a step is forward and backward; it runs once per microbatch
@smp.step
def get_grads(images, labels):
    predictions = model(images, training=True)
    loss = loss_object(labels, predictions)

    grads = optimizer.get_gradients(loss, model.trainable_variables)
    return grads, loss


@tf.function
def train_step(images, labels):
    gradients, loss = get_grads(images, labels)

    # smdistributed: add up the gradients of the microbatches
    gradients = [g.accumulate() for g in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    # smdistributed: the mean of the microbatches' losses
    train_loss(loss.reduce_mean())


@smp.step
def test_step(images):
    return model(images, training=False)


for epoch in range(args.epochs):
    train_loss.reset_states()
    test_accuracy.reset_states()

    for images, labels in train_ds:
        train_step(images, labels)

    test_predictions = []
    for images, labels in test_ds:
        # smdistributed: the predictions of all microbatches
        test_predictions.append(test_step(images).merge())
        test_accuracy(labels, test_predictions[-1])

    print(f"epoch {epoch + 1} loss={train_loss.result():.6f} test_accuracy={test_accuracy.result():.4f}")

# smdistributed: save the whole model as one SavedModel, and its predictions to compare with the loaded model's
model.save_model(os.path.join(os.environ["SM_MODEL_DIR"], "1"))
if smp.rank() == 0:
    np.save(os.path.join(os.environ["SM_MODEL_DIR"], "predictions.npy"), np.concatenate(test_predictions))
