"""What one process is born with: a supervisor from its controller, and the controller from the client."""

import signal

# A supervisor's descriptor whose end-of-file says that the controller is gone.
LIFELINE_FD = 3
# A supervisor's descriptor that gives the job's secret, where there are several hosts.
KEY_FD = 4

# The signals by which a controller is told to stop and to kill: they wait, blocked, until it can take them.
CONTROLLER_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# The signals that a supervisor does not ignore, though its controller does, or the client: Python ignores SIGPIPE, a
# shell's `&` SIGINT and SIGQUIT, `nohup` SIGHUP, and an ignored signal stays ignored in a child.
RESTORED_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
