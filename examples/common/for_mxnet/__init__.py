"""The parts of the examples that need MXNet: ranks, training steps, optimizers, and the encoder of BERT."""
