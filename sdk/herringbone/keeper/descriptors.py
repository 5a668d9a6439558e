"""The descriptors that a supervisor is born with, besides its standard ones."""

# A pipe whose end-of-file says that the keeper is gone.
LIFELINE_FD = 3
# A pipe that holds the job's secret, where there are several hosts.
KEY_FD = 4
