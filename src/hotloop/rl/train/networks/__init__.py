"""Networks of the trainers."""
