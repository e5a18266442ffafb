"""Asking a run, on any machine: no torch is needed, and the run may still be going on.

python examples/reading.py [runs/latest]
"""

import sys

import sonde

with sonde.open(sys.argv[1] if len(sys.argv) > 1 else "runs/latest") as run:
    print(run.info["status"], run.info["steps"])
    print(run.sites)

    # The largest gradients of the whole training, and where they were.
    print(
        run.sql(
            "select step, name, norm, max_abs from stats "
            "where kind = 'param_grad' order by max_abs desc limit 5"
        )
    )

    # One tensor at one step: how its values are spread, and what float8 would lose of them.
    name = run.sql("select name from sites where kind = 'param_grad' limit 1", frame="arrow")
    sketch = run.sketch(name["name"][0].as_py())
    print(sketch.histogram(8))
    print(sketch.quantiles([0.01, 0.5, 0.99]))
    print(sketch.loss("float8_e4m3fn"), sketch.loss("float8_e4m3fn", scale=2.0**16))

    # All gradients of a step as if they were one tensor: merging is exact.
    for step, merged in run.merge(kind="param_grad", by="step").items():
        print(f"step {step:4}: {merged.count} values, norm {merged.norm:.4g}")
