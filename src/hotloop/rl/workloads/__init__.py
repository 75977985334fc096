"""The reference pipelines: what they train, by which trainer, with which switches."""
