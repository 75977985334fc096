"""Knows libraries by name: wraps their methods in regions, and restores exactly what was there."""
