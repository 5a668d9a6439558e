"""Slots: the GPUs and CPU shares of one machine, which jobs of several users claim, and the line of jobs that wait.

devices, line, ticket    pure: devices of a listing, the order of the line, the form of a ticket
folder                   the files of the line on a machine, and its lock
probe                    asks nvidia-smi
claim                    the claim of one job: enter the line, be granted, leave
waiter                   the process that holds a waiting job; pending: stopping it, losing it, its place
"""
