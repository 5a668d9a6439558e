"""Descriptors and signals that a process inherits: a supervisor from its controller, a controller from the client."""

import signal

# A supervisor's descriptor on which end-of-file means that the controller is gone.
LIFELINE_FD = 3
# A supervisor's descriptor from which it reads the job's secret, when there are several hosts.
KEY_FD = 4
# A supervisor's descriptor from which it reads the key of a remote function's result.
REMOTE_KEY_FD = 5

# The signals that ask a controller to stop and to kill. The client blocks them before it starts the controller, so
# that they stay pending until the controller has handlers.
CONTROLLER_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# The signal that tells a controller of requests in the job's folder. A controller of an earlier release would die of
# it, so clients wait for the folder of requests, which the controller makes once it handles the signal.
REQUEST_SIGNAL = signal.SIGUSR1

# The signals whose default action a supervisor gets back. An ignored signal stays ignored in a child, and some are
# ignored further up: Python ignores SIGPIPE, a shell's `&` SIGINT and SIGQUIT, `nohup` SIGHUP.
RESTORED_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
