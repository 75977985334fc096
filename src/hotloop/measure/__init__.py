"""From a running program to capture parts: regions, the recorder, memory, device timing."""
