"""The built-in strategies: one in each file, registered through the same hooks as third-party plugins."""
