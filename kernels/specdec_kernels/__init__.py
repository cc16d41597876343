"""Kernel backends: one op has one name everywhere, and the reference in plain torch defines it."""
