"""The operations of the REST API; table.py lists all of them."""
