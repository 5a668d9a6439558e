"""Rehearsals: what ranks record of each optimizer step, and how the records of two runs are compared. Pure."""
