"""Writing a run: records to rows, rows to segments, small segments to large ones."""
