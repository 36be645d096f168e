"""`kapelle runs`, and following a run wherever one is started."""
