"""Mutants of our own code, and the tests that kill them: ``python -m benchsuite.workshop.mutation`` (docs/proof.md)."""
