"""The waist of the house: what a recorded run is, on disk and in memory. Interprets nothing."""
