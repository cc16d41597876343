"""Mutants of our own code, and the tests that kill them: ``python -m benchsuite.mutation`` (docs/proof.md)."""
