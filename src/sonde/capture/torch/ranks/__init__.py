"""Ranks: which part of a tensor this process holds, and who else holds the same."""
