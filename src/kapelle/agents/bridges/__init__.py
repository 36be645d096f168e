"""Processes between Kapelle and what does not print its events: `python -I -m …bridges.NAME`."""
