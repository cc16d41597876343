"""Measurement: settings, runners, paired runs, contract checks, and the figures of each row."""
