"""Tiny random models of every family, and engines over them."""
