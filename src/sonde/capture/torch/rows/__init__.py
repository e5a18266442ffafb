"""Rows on devices: from a tensor at a spot to a row, and from full rows to the drain."""
