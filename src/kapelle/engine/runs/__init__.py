"""Runs from their start to their end: queue, executor, journal, and what a pattern may call."""
