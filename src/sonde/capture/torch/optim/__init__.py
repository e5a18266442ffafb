"""Optimizers: what is read around a step, which parameters they train, and their settings."""
