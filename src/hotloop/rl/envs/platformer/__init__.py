"""A side-scrolling platform game with levels drawn from a seed."""
