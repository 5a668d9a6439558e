"""The collective operations that this rank has entered, by torch's flight recorder, and the steps that it has taken."""
