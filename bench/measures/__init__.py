"""One module per figure; each has functions that take a Run and return rows."""
