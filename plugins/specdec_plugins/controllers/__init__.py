"""Draft-length controllers."""
