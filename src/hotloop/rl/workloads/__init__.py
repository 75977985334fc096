"""The five reference pipelines: settings, variants and trainers of each."""
