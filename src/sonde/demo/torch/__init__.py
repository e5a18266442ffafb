"""The part of the demo that knows torch: the network and its training."""
