"""The command line: one small file for each verb. No other part imports it."""
