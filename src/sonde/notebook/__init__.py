"""Notebooks: the page as a widget, live while the same kernel trains, and pictures that stay.

`kernel_server.py` answers from threads and processes of its own, so no question waits for a cell.
`widget.py` is the widget, `showing.py` makes one, `views.py` is `run.view`, `markup.py` what a run
or a watch looks like as the last value of a cell.
"""
