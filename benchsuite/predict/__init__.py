"""Speedups predicted from what was measured elsewhere: what forwards and drafts cost, and what other texts accepted."""
