"""One module for each kind of agent: which command to run, and what its output means."""
