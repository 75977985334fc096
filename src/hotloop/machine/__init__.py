"""Facts about this computer: cores really granted, memory, versions, limits."""
