"""`kapelle schedule`."""
