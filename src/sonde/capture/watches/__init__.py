"""What a watch offers in some frameworks only: training as a function, and recording by hand."""
