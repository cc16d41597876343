"""The doctor of draft heads: whether a head is read as it was trained, told from what it accepts."""
