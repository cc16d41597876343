"""benchsuite"""
