"""Put the lessons into the wheel, as course_lib/notebooks, and the README's links in order for PyPI; all else is in
pyproject.toml."""

import os
import re
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
    """Return the README. PyPI has no files beside it: links to files lead to $GITHUB_REPOSITORY, if that is set."""
    text = Path("README.md").read_text("utf-8")
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        hosts = {"!": "raw.githubusercontent.com/{}/HEAD", "": "github.com/{}/blob/HEAD"}  # of pictures, of other files
        address = {mark: f"https://{host.format(repository)}/" for mark, host in hosts.items()}
        text = re.sub(r"(!?)(\[[^]]*\]\()(?!https?:)", lambda link: link[0] + address[link[1]], text)
    return text


setup(
    cmdclass={"build_py": WithLessons},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
