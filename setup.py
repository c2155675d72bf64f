"""Maps the top-level folders to `asynclane.*`; everything else is in pyproject.toml.

The folders are found, so a new one needs no list. Benchmarks and training are linked by an editable install and left
out of a wheel, but for what is behind `asynclane bench`, `asynclane eval` and `asynclane train-controller`.
"""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

TOP = "python"  # the folder of what `import asynclane` itself offers; one named as the package would hide it
FOLDERS = ["clients", "deploy", "kernels", "models", "scheduler", "server"]
SHIPPED = [*FOLDERS, "bench.eval", "bench.load", "training.controllers"]
DEVELOPMENT = ["bench", "training"]
DATA = [
    *("py.typed", "*.json", "*.jinja", "*.npz", "*.safetensors", "embedded/*/*"),
    *("web/*.*", "web/vendor/*.js", "web/vendor/*.txt"),
]


def found(folders: list[str]) -> list[str]:
    include = [pattern for folder in folders for pattern in (folder, f"{folder}.*")]
    return ["asynclane", *(f"asynclane.{package}" for package in find_packages(include=include))]


class BuildPy(build_py):
    def finalize_options(self) -> None:
        super().finalize_options()
        if not self.editable_mode:
            self.packages = found(SHIPPED)


setup(
    packages=found([*SHIPPED, *DEVELOPMENT]),
    package_dir={"asynclane": TOP} | {f"asynclane.{folder}": folder for folder in (*FOLDERS, *DEVELOPMENT)},
    package_data={"": DATA},
    cmdclass={"build_py": BuildPy},
)
