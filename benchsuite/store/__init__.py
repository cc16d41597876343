"""A run's folder of cells, from which it can go on."""
