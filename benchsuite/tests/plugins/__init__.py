"""Tests: drafts, policies, controllers, engines, endpoints."""
