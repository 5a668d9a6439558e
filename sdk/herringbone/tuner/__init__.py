"""Search for good hyperparameters, with the names and the semantics of SageMaker's tuner."""
