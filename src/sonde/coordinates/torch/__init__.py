"""The coordinate check of PyTorch models."""
