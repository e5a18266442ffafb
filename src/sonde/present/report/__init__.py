"""Reports: a run as one HTML file, the page with its answers inside.

`wishes.py` says what belongs into a report, the most important first; `document.py` puts it into
HTML; `writing.py` does both under a size limit and says what was left out.
"""
