"""Cases of every op of a backend, and their agreement with the reference."""
