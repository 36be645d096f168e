"""Runs any command as a detached, supervised process that outlives the daemon.

A process directory holds everything about one run. `runner.py` is the daemon's side; `spawner.py`,
`shim.py` and the modules they import form the other side: standard library only, executed from a
content-addressed copy, so that an upgrade cannot break a run that is under way.
"""
