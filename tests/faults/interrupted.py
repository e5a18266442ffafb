"""Programs that are interrupted at random instants. Run by `test_interrupts.py`.

Usage: interrupted.py WHAT FOLDER N SEED. Interrupts itself N times while it does WHAT, and prints
JSON: how many interrupts were sent and caught, and how it ended.
"""

import faulthandler
import json
import random
import signal
import sys
import time
from pathlib import Path

SENT = 0
CAUGHT = 0
SWALLOWED = []
LEFT = []
"""Interrupts inside a destructor or a callback of a weak reference: Python itself drops those."""


def interrupt(signum, frame):
    global SENT
    SENT += 1
    raise KeyboardInterrupt


def attack(act, n, longest_s):
    """Do it again and again, interrupted n times, each at some instant."""
    global CAUGHT
    for _ in range(n):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, longest_s))
            while SENT == CAUGHT:
                act()
            CAUGHT += 1
            if LEFT:
                LEFT.pop()
            else:
                SWALLOWED.append(CAUGHT)
        except KeyboardInterrupt:
            CAUGHT += 1


def handing_over(folder, n):
    """The calls with which the training thread reaches the drain and the writer."""
    from sonde.capture.drain import Drain, WindowRows
    from sonde.record import Event
    from sonde.store import Writer

    class Filled:
        size_bytes = 1
        can_wait = False

        def sketches(self, rows):
            raise AssertionError("a window without rows has none")

    class Quiet(Drain):
        def _hold(self, part):
            pass

    writer = Writer(folder / "run", flush_s=0.05, compact=False)
    drain = Quiet([])

    def act():
        drain.put(WindowRows({}, Filled(), None))
        writer.event(Event("tick", ""))
        drain.wait(5.0)
        writer.flush(5.0)
        _ = writer.counts

    attack(act, n, 2e-3)
    began = time.monotonic()
    ok = drain.wait(20) and writer.flush(20)
    drain.close("finished", 20)
    writer.close("finished", 20)
    counts = writer.counts
    settled = counts.pending == 0 and counts.handed == counts.written
    return {"ok": ok, "settled": settled, "took_s": time.monotonic() - began}


def training(folder, n):
    """A watched training that catches each interrupt and goes on."""
    import torch

    import sonde

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = sonde.watch(model, optimizer, every=1, log="all", dir=folder, name="run", flush_s=0.1)
    x = torch.ones(4, 8)

    def act():
        torch.set_grad_enabled(True)  # which an interrupt inside torch.no_grad() leaves off
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.log(loss=1.0)

    act()
    attack(act, n, 4e-3)
    first = watch._session.capture.step
    for _ in range(20):
        act()
    hooked = sum(len(m._forward_hooks) for m in model.modules())
    dropped = watch._session.capture.steps.dropped
    began = time.monotonic()
    attack(watch.close, 1, 5e-3)
    watch.close()
    left = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with sonde.open(folder / "run") as run:
        steps = [s for s in run.steps if s >= first]
        status = run.status
        failed = run.sql("select message from events where code = 'failed'")["message"].tolist()
    return {
        "ok": hooked > 0 and left == 0 and not failed,
        "settled": len(steps) >= 20,
        "steps": [first, len(steps), watch._session.capture.step],
        "status": status,
        "dropped": dropped,
        "took_s": time.monotonic() - began,
    }


def main(what, folder, n, seed):
    faulthandler.dump_traceback_later(200, exit=True)
    random.seed(int(seed))
    sys.unraisablehook = LEFT.append
    signal.signal(signal.SIGALRM, interrupt)
    found = {"handing_over": handing_over, "training": training}[what](Path(folder), int(n))
    print(json.dumps({**found, "sent": SENT, "caught": CAUGHT, "swallowed": SWALLOWED}))


main(*sys.argv[1:])
