"""The suite's own tests."""
