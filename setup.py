"""Put the lessons into the wheel, as course_lib/notebooks, and the README's links in order for PyPI; all else is in
pyproject.toml."""

import re
import tomllib
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


def readme() -> str:
    """Return the README. PyPI has no files beside it: links lead to the repository, if pyproject.toml names one."""
    text = Path("README.md").read_text("utf-8")
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    if repository := project.get("urls", {}).get("Repository"):
        folders = {"!": "raw", "": "blob"}  # of pictures, of other files
        address = {mark: f"{repository}/{folder}/HEAD/" for mark, folder in folders.items()}
        text = re.sub(r"(!?)(\[[^]]*\]\()(?!https?:)", lambda link: link[0] + address[link[1]], text)
    return text


setup(
    cmdclass={"build_py": WithLessons},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
