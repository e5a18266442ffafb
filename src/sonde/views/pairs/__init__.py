"""Views of two runs side by side."""
