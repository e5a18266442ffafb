"""Metrics of JAX arrays."""
