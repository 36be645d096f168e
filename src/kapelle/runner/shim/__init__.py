"""The process side: a spawner that forks shims, and the shim that supervises one agent.

Standard library only and relative imports only, because it is executed from a content-addressed
copy in the state directory: an upgrade cannot break what is under way.
"""
