"""Facts about this computer: cores and memory this process may use, load, limits, versions."""
