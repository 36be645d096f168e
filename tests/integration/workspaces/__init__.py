"""Worktrees, commits, diffs and merges with the real git."""
