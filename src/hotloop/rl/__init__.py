"""The things worth making fast: environments, and later what trains on them."""
