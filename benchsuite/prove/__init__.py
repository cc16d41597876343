"""Proofs: enumeration, table targets, samples with a stated power, state machines, tiny models."""
