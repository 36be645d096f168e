"""The seam to coding agents: what to run, what its output means, and whether it succeeded."""
