"""Hosts that have started ahead, and checkpoints in memory: both are for a job's next attempt."""
