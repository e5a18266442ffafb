"""Observing single functions while they run."""
