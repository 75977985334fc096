"""Snake on an n x n grid: obvious rules, compiled batches, pictures."""
