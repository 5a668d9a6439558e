"""The controller: one detached process per job that runs the job's life on this machine.

It starts one supervisor per host, writes their output into log files, updates the index, enforces `max_run`, stops the
job on request, collects failures and packs the model. It outlives the Python that submitted the job.

The user waits for the first line while a controller starts. Modules of this package therefore import at the top only
what Python has loaded anyway or loads in a millisecond, and everything else in the function that uses it.
"""
