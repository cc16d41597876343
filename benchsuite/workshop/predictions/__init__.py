"""Predictions beside what was measured, mistakes planted into costs, the advisor beside a grid."""
