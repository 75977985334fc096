"""Compiled learners and rollouts for small dense networks: float32 kernels on one flat parameter array."""
