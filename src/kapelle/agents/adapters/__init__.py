"""The adapters of agents: each module holds one agent's command line and its output's meaning.

The registry finds them by name: the module `name.py` holds the class `NameAgent`.
"""
