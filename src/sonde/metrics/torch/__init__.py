"""What is computed from torch tensors: built-in metrics, attention, the coordinate check."""
