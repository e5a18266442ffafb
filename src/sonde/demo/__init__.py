"""The demo: a small network learns to write, Sonde watches, and tells what it saw.

`text.py` is what it reads, `scenarios.py` what is trained and what goes wrong, `torch/` the network
and its training, `telling.py` what a person sees meanwhile and afterwards. Nothing else in Sonde
uses any of it.
"""
