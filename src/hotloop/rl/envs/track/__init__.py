"""A car that follows a closed track."""
