"""Teams of agents in a program of one's own, without a daemon."""
