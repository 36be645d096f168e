"""The command line: talks to the daemon over its socket and decides nothing by itself."""
