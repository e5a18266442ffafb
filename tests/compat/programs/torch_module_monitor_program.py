"""A training that a user of torch-module-monitor may have: prints all metrics as JSON."""

import copy
import json
import sys

import torch
from torch import nn
from torch_module_monitor import ModuleMonitor, RefinedCoordinateCheck
from torch_module_monitor.storage import StorageManager

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))
reference = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

monitor = ModuleMonitor(monitor_step_fn=lambda step: step % 3 == 0)
monitor.set_module(model)
monitor.set_reference_module(reference)
monitor.add_activation_metric("mean", lambda x: x.mean())
monitor.add_activation_metric("row_norm", lambda x: x.norm(dim=-1))
monitor.add_activation_metric("top", lambda x: x, "0", lambda v: {"[max]": v.max().item()})
monitor.add_activation_difference_metric("distance", lambda x, y: (x - y).norm(dim=-1))
monitor.add_parameter_metric("norm", lambda p: p.norm())
monitor.add_parameter_difference_metric("distance", lambda p, q: (p - q).norm())
monitor.add_gradient_metric("norm", lambda g: g.norm())
check = RefinedCoordinateCheck(monitor)

for step in range(int(sys.argv[1])):
    monitor.begin_step(step)
    for size in (4, 2):
        x = torch.randn(size, 6)
        with torch.no_grad():
            reference(x)
        loss = model(x).square().mean()
        loss.backward()
        check.refined_coordinate_check()
        monitor.after_micro_batch()
    monitor.monitor_parameters()
    monitor.monitor_gradients(before_clip=True)
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    monitor.monitor_gradients()
    monitor.log_scalar("loss", loss)
    optimizer.step()
    optimizer.zero_grad()
    monitor.end_step()

assert isinstance(monitor.storage, StorageManager)
print(json.dumps(monitor.get_all_metrics()))
