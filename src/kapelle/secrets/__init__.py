"""Secrets that Kapelle stores, and values that it must redact.

`vault` keeps API keys, `specs` keeps the variables of tasks, runs and schedules, and `detection`
decides which values are secret. Redaction itself is in `runner/redaction.py`.
"""
