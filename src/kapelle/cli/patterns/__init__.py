"""Commands that start a pattern, each from its options to the specification of a run."""
