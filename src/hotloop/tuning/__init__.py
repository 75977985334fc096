"""Settings for this machine, with reasons."""
