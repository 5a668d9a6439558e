"""The place of a training in MXNet: the samples that completed steps have used, and random numbers."""
