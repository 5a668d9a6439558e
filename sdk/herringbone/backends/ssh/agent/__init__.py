"""Jobs on machines elsewhere, whatever brings us there: what runs over there, and how one talks to it.

    here                                         there, one process per visit
      visit ---- standard input and output ----->  front   makes the environment, once, and becomes the desk
            <--- messages, each one line of JSON,  desk    locks the machine, takes code and data, starts the host,
                 bytes behind it --------------->          tells how it is and what it says

A host that a desk has started has a controller of its own, on its machine: it outlives the visit, this Python and
this machine. A later visit, of anybody who may log in there, finds it again.
"""
