"""Views of a model's structure: its tree, one level of its graph, and what a module can show."""
