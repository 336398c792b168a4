"""Put the lessons into the wheel, as course_lib/notebooks; all else is in pyproject.toml."""

from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree

from setuptools import setup
from setuptools.command.build_py import build_py


class WithLessons(build_py):
    """The ordinary build, and a copy of the lessons."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # else they are read where they stand
            lessons = Path(self.build_lib, "course_lib", "notebooks")
            rmtree(lessons, ignore_errors=True)  # may hold one that has a new name now
            copytree("notebooks", lessons, ignore=ignore_patterns(".ipynb_checkpoints"))


setup(cmdclass={"build_py": WithLessons})
