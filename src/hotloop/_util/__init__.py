"""The bottom of the house: imports nothing of ours."""
