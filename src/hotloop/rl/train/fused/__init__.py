"""Compiled learners for small dense networks, behind the contract in `protocol.py`."""
