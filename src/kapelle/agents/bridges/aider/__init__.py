"""Runs aider, and makes events of its prose."""
