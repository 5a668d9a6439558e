"""Hosts that have started ahead, for a job's next attempt."""
