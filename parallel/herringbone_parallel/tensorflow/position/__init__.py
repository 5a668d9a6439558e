"""The place of a training in TensorFlow and Keras: the samples that completed steps have used, and random numbers."""
