"""Tests of the doctor of heads: its counts by hand, its evidence by brute force, misreadings that are planted."""
