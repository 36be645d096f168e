"""Execute commands as detached, supervised processes that outlive the daemon.

A process directory holds everything about one execution. The modules here are the daemon's side;
the package `shim` is the side of the supervised process.
"""
