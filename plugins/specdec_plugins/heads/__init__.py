"""Trained draft heads: the text they learn from, their modules, their training, their weights."""
