"""Reading a run: which segments count, what they hold, and answers as frames."""
