"""The client, written once: generate.py makes the package `synchronous` from this one."""
