"""Snake on an n x n grid: readable rules, compiled batches, pictures."""
