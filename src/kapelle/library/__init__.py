"""Run teams of agents inside a Python program, without a daemon."""
