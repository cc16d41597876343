"""Kernel backends: an op has the same name in all of them, and the reference in plain torch defines its result."""
