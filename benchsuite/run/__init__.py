"""pytest's side of a run: options become arms, arms become items, what is measured becomes files."""
