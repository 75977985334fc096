"""Experience from environments to a learner: in this process, from many, or through the locked baseline."""
