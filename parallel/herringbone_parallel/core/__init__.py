"""Partitioner, pipeline schedules, prediction of sums and the grid of ranks: pure logic without a framework."""
