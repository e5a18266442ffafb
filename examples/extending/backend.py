"""A backend: models of a framework that Sonde does not know, here a line that numpy fits."""

import numpy as np

import sonde
from sonde.capture.array_session import ArrayBackend, ArraySession
from sonde.capture.backend import register


class Line:
    weight = gradient = np.zeros(2)


class LineSession(ArraySession):
    def end_by_hand(self):  # watch.step(), called after each update
        self.take("param", "", self.model.weight, slot="weight")
        self.take("param_grad", "", self.model.gradient, slot="weight")
        self.end_step()


register(ArrayBackend("line", Line, LineSession))
model, rng = Line(), np.random.default_rng(0)
with sonde.watch(model, every=5, name="backend") as watch:
    for _ in range(20):
        x = rng.normal(size=(64, 2))
        model.gradient = 2 * x.T @ (x @ model.weight - x @ (1, 2)) / 64
        model.weight = model.weight - 0.1 * model.gradient
        watch.step(loss=np.square(model.weight - (1, 2)).sum())
print(sonde.open("runs/backend").stats("weight", stat=["mean", "norm"]))
