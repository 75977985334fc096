"""Ricochet Robots: rules, generator, exact solver, drawing, each in plain Python and compiled."""
