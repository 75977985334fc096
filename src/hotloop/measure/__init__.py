"""Records a running program into capture parts: regions, memory, device timing, and the two cores."""
