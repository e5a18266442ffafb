"""Trackers for PyTorch (`track.torch`) and JAX (`track.jax`), and LogFrames (`track.common`)."""
