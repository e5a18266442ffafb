"""Adds what is written in C to the build; everything else is in pyproject.toml.

Both extensions are optional: where they cannot be compiled the install goes on without them, and
`SONDE_NO_EXTENSIONS=1` leaves them out, as the wheel for Windows does.
"""

import os
import runpy
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

# One binary for all Pythons from 3.11 on; Python without a GIL has no such thing yet.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
IS_PURE = os.environ.get("SONDE_NO_EXTENSIONS") == "1"
PYTHONS = [("Py_LIMITED_API", "0x030B0000")] if LIMITED else []

# What the extensions are built from: an older one is refused when it is imported.
STAMP = runpy.run_path("src/sonde/_built.py")["stamp_of"]("src/sonde")


def extension(name: str, folder: str) -> Extension:
    """The extension of that name, from all sources of a folder."""
    sources = Path(folder)
    return Extension(
        name,
        sources=sorted(str(path) for path in sources.glob("*.c")),
        depends=sorted(str(path) for path in Path("src").rglob("*.[ch]")),
        extra_compile_args=["-O3", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
        define_macros=[("SONDE_SOURCES", f'"{STAMP}"'), *PYTHONS],
        py_limited_api=LIMITED,
        optional=True,
    )


setup(
    ext_modules=[]
    if IS_PURE
    else [
        extension("sonde.kernels._c", "src/sonde/kernels/c"),
        extension("sonde.capture._native", "src/sonde/capture/c"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED and not IS_PURE else {},
)
