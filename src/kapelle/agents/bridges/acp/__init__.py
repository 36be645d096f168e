"""Talks to an agent over the Agent Client Protocol, and prints what comes of it."""
