"""Helpers of the end-to-end tests: daemons, repositories, stand-in agents and servers."""
