"""The program on a machine of an inventory, independent of the transport that reaches the machine.

    client                                        machine, one process per connection
      Connection -- standard input and output --> bootstrap   makes the environment once, then becomes the agent
                 <-- messages: one line of JSON   agent       locks the machine, stores uploads, starts the host,
                     each, then its bytes ------>             reports the host's row and its log

The agent starts each host under a controller of its own on that machine. The host outlives the connection, the client's
Python and the client's machine. A later connection, by anybody who may log in there, finds the host again.
"""
