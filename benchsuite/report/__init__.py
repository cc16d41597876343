"""Reports of a measurement: tables, files and terminal output."""
