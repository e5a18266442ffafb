"""Numbers of a step that are no sketches: scalars, norms, and the latest of both for loggers."""
