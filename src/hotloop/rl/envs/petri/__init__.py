"""Timed Petri nets: the cluster tool, job shops, PNML files, a state-space counter, one environment."""
