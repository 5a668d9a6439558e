"""The lines of an inventory's machines, as the client sees them.

claims     pure: what a job claims on each machine, and its place in several lines
waiter     the process that holds a waiting job
start      starts that process
"""
