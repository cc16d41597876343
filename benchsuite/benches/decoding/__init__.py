"""Decoding as users run it: ratios of alternated arms over equal tokens."""
