"""The Python API: a typed client of the daemon, sync and async, and how the daemon is reached."""
