"""What was measured, as tables, files and a terminal's lines."""
