"""Knows libraries by name: wraps their methods in regions, and puts back exactly what was there."""
