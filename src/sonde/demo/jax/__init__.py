"""The demo in JAX."""
