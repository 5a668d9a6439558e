"""The place of a training for frameworks without torch: the order of samples, and a checkpoint of whole arrays."""
