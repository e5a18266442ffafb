"""Tracing of PyTorch models. The only part of tracing that knows torch."""
