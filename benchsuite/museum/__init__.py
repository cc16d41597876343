"""The museum of shipped bugs: what the suite is measured by."""
