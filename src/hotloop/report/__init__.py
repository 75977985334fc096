"""Findings in, something people look at out: terminal, HTML, pictures, exports. Computes no numbers."""
