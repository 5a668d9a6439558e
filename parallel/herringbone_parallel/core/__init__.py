"""Rank grid, schedules, partitioner: pure logic, no framework, tested by literals."""
