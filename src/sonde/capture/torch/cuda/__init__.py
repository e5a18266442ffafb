"""CUDA: graphs that are captured and replayed, time on the device, copies to the host."""
