"""The engine starts tasks, runs and schedules when they are due, and brings them to an end."""
