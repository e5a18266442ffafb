"""A framework in numpy with gradients by hand, and the backend that lets Sonde watch its models."""

from functools import partial
from itertools import pairwise

import numpy as np

from sonde.capture.array_session import ArrayBackend, ArraySession


class Dense:
    def __init__(self, rng, n_in, n_out):
        self.weight = rng.standard_normal((n_out, n_in)).astype(np.float32) / n_in**0.5
        self.bias = np.zeros(n_out, np.float32)
        self.gradients = {}

    def forward(self, x):
        self._x = x
        return x @ self.weight.T + self.bias

    def backward(self, gradient):
        self.gradients = {"weight": gradient.T @ self._x, "bias": gradient.sum(0)}
        return gradient @ self.weight


class Relu:
    gradients = {}

    def forward(self, x):
        self._is_on = x > 0
        return x * self._is_on

    def backward(self, gradient):
        return gradient * self._is_on


class MLP:
    def __init__(self, *sizes, seed=0):
        rng = np.random.default_rng(seed)
        self.layers = {}
        for i, (n_in, n_out) in enumerate(pairwise(sizes)):
            self.layers[f"dense{i}"] = Dense(rng, n_in, n_out)
            if i < len(sizes) - 2:
                self.layers[f"relu{i}"] = Relu()

    def forward(self, x):
        for layer in self.layers.values():
            x = layer.forward(x)
        return x

    def backward(self, gradient):
        for layer in reversed(self.layers.values()):
            gradient = layer.backward(gradient)


class SGD:
    def __init__(self, model, lr):
        self.model, self.lr = model, lr

    def step(self):
        for layer in self.model.layers.values():
            for name, gradient in layer.gradients.items():
                setattr(layer, name, getattr(layer, name) - np.float32(self.lr) * gradient)


class NumpySession(ArraySession):
    def __init__(self, model, plan, schedule, drain, *, step, optimizer):
        super().__init__(model, plan, schedule, drain, step=step, optimizer=optimizer)
        self.hung = [(optimizer, "step")]
        optimizer.step = partial(self.update, optimizer.step)
        for path, layer in model.layers.items():
            layer.forward = partial(self.forward, path, layer, layer.forward)
            layer.backward = partial(self.backward, path, layer, layer.backward)
            self.hung += [(layer, "forward"), (layer, "backward")]

    def forward(self, path, layer, forward, x):
        output = forward(x)
        self.take("output", path, output, owner=layer)
        return output

    def backward(self, path, layer, backward, gradient):
        self.take("output_grad", path, gradient, owner=layer)
        return backward(gradient)

    def update(self, step):
        before = []
        for path, layer in self.model.layers.items():
            for name, gradient in layer.gradients.items():
                before.append((path, name, layer, getattr(layer, name)))
                self.take("param", path, getattr(layer, name), slot=name, owner=layer)
                self.take("param_grad", path, gradient, slot=name, owner=layer)
        step()
        for path, name, layer, old in before:
            self.take("update", path, getattr(layer, name) - old, slot=name, owner=layer)
        self.end_step()

    def detach(self):
        for owner, name in self.hung:
            delattr(owner, name)


def NumpyBackend():
    return ArrayBackend("numpy", MLP, NumpySession)
