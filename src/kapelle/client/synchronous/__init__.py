"""The client for programs without asyncio, made from the package `asynchronous`."""
