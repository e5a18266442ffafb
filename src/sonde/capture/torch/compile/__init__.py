"""Compiled models: traced hooks, the operators they place, and what becomes of the code."""
