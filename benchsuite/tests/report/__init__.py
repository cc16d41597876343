"""Tests: tables, files, pages."""
