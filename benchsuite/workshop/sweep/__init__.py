"""Every causal model of transformers, tiny and random, tried over the arena: what runs exactly, what is refused."""
