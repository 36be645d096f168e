"""Pipelines from files, with errors that name the line."""
