"""Metrics of a watched model: which are evaluated where, and what becomes of their numbers."""
