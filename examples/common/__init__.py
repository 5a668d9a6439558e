"""What the training examples share: hyperparameters, ranks, and who takes which examples."""
