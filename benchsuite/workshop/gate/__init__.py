"""How often the gate is wrong (docs/gate.md)."""
