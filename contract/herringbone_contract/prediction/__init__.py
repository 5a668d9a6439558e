"""The form of a prediction: what is asked of the predictor, and its answer."""
