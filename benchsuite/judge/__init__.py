"""Whether an output is right, and how far one that need not be is from it."""
