"""A recorded run, on disk and in memory: the file format, its reader and the model. Interprets nothing."""
