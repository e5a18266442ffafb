"""Capture of JAX functions."""
