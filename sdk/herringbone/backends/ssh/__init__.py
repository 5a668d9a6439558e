"""The backend `ssh:`, in rooms of which each knows only those below it; `scripts/import_contracts.toml` checks that.

backend, running  the verbs of a backend: those that start jobs, and those about jobs that have been started
waiter            the process that waits in line for machines
finish            the client's part of an attempt's end: fetch, restart, pack
inspection        questions to all machines of an inventory (`herringbone hosts`)
follow            rows, logs and events of a running job, and a look into its hosts
start             from a plan to hosts that run
transport         connections to machines, and copies
agent             the program on each machine
attempts          pure: what an attempt is, whether it is over, how it ended, which machines are lost
machines          pure, but for files: the machines of an inventory, what they report, what was measured of them
"""
