"""The process side: a spawner that forks shims, and the shim that supervises one agent.

Standard library and relative imports only. The package is executed from a content-addressed copy in
the state directory, so that an upgrade of Kapelle cannot break a running attempt.
"""
