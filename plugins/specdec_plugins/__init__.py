"""The built-in strategies: one idea a file, registered through the same hooks as anybody's."""
