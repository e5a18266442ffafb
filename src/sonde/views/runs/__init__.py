"""Views of runs as a whole: the list of them, and the header of one."""
