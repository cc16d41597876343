"""The regression gate: ``pytest --gate --gate-against FILE|REV``. Imports no torch."""
