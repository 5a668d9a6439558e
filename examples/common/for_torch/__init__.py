"""The parts of the examples that need PyTorch: ranks, training steps, and the encoder of BERT."""
