"""Code that the training examples share: hyperparameters, ranks, and the order of the examples."""
