"""Tracing: the values of named variables inside methods, as they change."""
