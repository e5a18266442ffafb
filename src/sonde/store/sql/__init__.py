"""SQL over one run: its views, their limits, and what happens when a file is damaged."""
