"""The controller: one detached process per job that plays the platform's part on this machine.

It starts one supervisor per host, files what they print, keeps the index true, enforces `max_run`, stops the job when
asked, collects failures and packs the model. It outlives the Python that submitted the job.

The user waits for the first line while a controller starts: modules here import at the top only what Python has loaded
anyway or loads in a millisecond, and the rest where it is used.
"""
