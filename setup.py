"""Builds the compiled parts; without a C compiler the package still installs and uses their Python twins."""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
MEASURE = Path("src/hotloop/measure")
COLLECT = Path("src/hotloop/rl/collect")


class BuildWithLayout(build_ext):
    """Writes layout.h from the declarations in layout.py, then compiles."""

    def run(self) -> None:
        layout = runpy.run_path(str(HERE / "src/hotloop/capture/layout.py"))
        (HERE / MEASURE / "layout.h").write_text(layout["c_header"]())
        super().run()


setup(
    cmdclass={"build_ext": BuildWithLayout},
    ext_modules=[
        Extension(
            "hotloop.measure._core",
            [str(MEASURE / "_core.c"), str(MEASURE / "gil_place.c")],
            depends=[
                *map(str, sorted(MEASURE.glob("compiled/*.h"))),
                str(MEASURE / "layout.h"),
                "src/hotloop/capture/layout.py",
            ],
            extra_compile_args=["-O3", "-fno-plt", "-fvisibility=hidden", "-Wall", "-Wextra"],
            optional=True,
        ),
        Extension(
            "hotloop.rl.collect._transport",
            [str(COLLECT / "_transport.c")],
            depends=[str(COLLECT / "ring.h")],
            extra_compile_args=["-std=gnu11", "-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
            optional=True,
        ),
    ],
)
