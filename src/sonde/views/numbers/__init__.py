"""Views of numbers: heatmaps, kymographs, cross-sections, lines."""
