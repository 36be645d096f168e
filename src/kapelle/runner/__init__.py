"""Executes any command as a detached, supervised process that outlives the daemon.

A process directory holds everything about one execution. The modules here are the daemon's side;
the package `shim` is the other one.
"""
