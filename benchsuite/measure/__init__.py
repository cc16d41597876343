"""What is run, and what came of it: settings, runners, paired measurement, contracts, figures."""
