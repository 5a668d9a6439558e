"""The parts of the examples that need TensorFlow and Keras 3: ranks, training steps, and the encoder of BERT."""
