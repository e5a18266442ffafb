"""Capture of PyTorch models: hooks, passes and steps. Only this part of capture imports torch."""
