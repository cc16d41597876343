"""Trained draft heads: training text, modules, training and weights."""
