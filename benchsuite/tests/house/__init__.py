"""Tests: the layout of the code and of the suite."""
