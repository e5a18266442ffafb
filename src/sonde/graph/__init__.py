"""The graph of a model: which calls there are inside which, and how data flows between them.

`model.py` is the graph as data, `folding.py` finds what repeats in it; neither knows a framework.
`torch.py` takes the graph from a PyTorch model while it runs.
"""
