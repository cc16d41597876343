"""Draft strategies."""
