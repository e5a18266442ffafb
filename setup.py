"""Adds the C kernel to the build; everything else is in pyproject.toml.

The extension is optional: where it cannot be compiled the install goes on without it.
"""

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("src/sonde/kernels/c")

# One binary for all Pythons from 3.11 on; Python without a GIL has no such thing yet.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "sonde.kernels._c",
            sources=sorted(str(path) for path in SOURCES.glob("*.c")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            extra_compile_args=["-O3", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
            py_limited_api=LIMITED,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
)
