"""The site: `make site` writes it to build/site/. Lessons are shown as they are saved: a build never executes them."""

import re
import shutil
import textwrap
import tomllib
import zipfile
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output

from course_lib.syllabus import named
from docs.quiz_page import quiz

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
NPM = ROOT / "build" / "npm" / "node_modules"
"""Where `make site` has fetched Pyodide before."""
STATIC = ROOT / "build" / "static"
"""Files of the site that are made here."""

ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = ABOUT.get("urls", {}).get("Repository", "")
"""The one address of the repository, on GitHub. Without it, the site has no link to it, to Colab or to Binder."""

project = "Sharded"
copyright = "2026 The Sharded authors"
suppress_warnings = ["misc.highlighting_failure"]  # a traceback that quotes a message is not all Python
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["**.ipynb_checkpoints"]
nb_execution_mode = "off"
nb_execution_raise_on_error = True  # of the two pages that say so: the first page, and the planner
nb_execution_timeout = 180
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # a saved card stands in for each widget, and nothing is fetched
nb_code_prompt_show = "Show the answer"
nb_code_prompt_hide = "Hide the answer"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False  # otherwise a docstring is read twice, and a colon in a sentence begins a type
default_role = "code"

html_theme = "furo"
html_title = "Sharded"
html_baseurl = ABOUT.get("urls", {}).get("Documentation", "").rstrip("/")
html_static_path = ["static", str(STATIC)]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "static/icon.svg"
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#3b5bdb", "color-brand-content": "#3b5bdb"},
    "dark_css_variables": {"color-brand-primary": "#91a7ff", "color-brand-content": "#91a7ff"},
}

PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
PLANNER = (
    "errors.py", "planner/**/*.py", "planner/t*/*.csv", "plots/canvas.py", "plots/picture.py", "plots/timeline.py",
    "widgets/planner/fields.py", "widgets/planner/drawing.py", "widgets/planner/page.py",
)  # fmt: skip
"""The modules that plan and draw, which need only Python. The packages' `__init__.py` would import every figure."""

CODE = {"code_prompt_show": "Show the code", "code_prompt_hide": "Hide the code"}
EMPTY: tuple[dict[str, str], ...] = ({}, {"text/plain": ""})


def copy_lessons() -> None:
    """Copy the notebooks to docs/lessons/, with what is folded marked in the way that MyST-NB reads."""
    (DOCS / "lessons").mkdir(exist_ok=True)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        lesson = nbformat.read(path, as_version=4)
        for cell in lesson.cells:
            if cell.cell_type == "code":
                adapt_cell(cell)
        if REPOSITORY:
            heading, rest = lesson.cells[0].source.split("\n", 1)
            lesson.cells[0].source = f"{heading}\n\n{open_links(path.name)}\n{rest}"
        text = nbformat.writes(lesson).replace("](../docs/", "](../")
        copy = DOCS / "lessons" / path.name
        if not copy.exists() or copy.read_text("utf-8") != text:  # an unchanged page is not built again
            copy.write_text(text, "utf-8")


def adapt_cell(cell: NotebookNode) -> None:
    """Tag what is folded, leave out what widgets leave, lead links to pages, and let a quiz answer."""
    folded = cell.metadata.get("jupyter", {})
    answers = folded.get("outputs_hidden", False)
    tags = ["hide-output"] if answers else []
    if folded.get("source_hidden"):
        tags.append("remove-input" if answers else "hide-input")
        cell.metadata["mystnb"] = {} if answers else CODE
    cell.metadata["tags"] = [*cell.metadata.get("tags", []), *tags]
    cell.outputs = [output for output in cell.outputs if output.get("data") not in EMPTY]
    for output in cell.outputs:
        if html := output.get("data", {}).get("text/html"):  # the map links to notebooks, and here they are pages
            output.data["text/html"] = re.sub(r'href="([\w-]+)\.ipynb"', r'href="\1.html"', html)
    for name in named(cell.source, "quiz"):
        cell.outputs = [new_output("display_data", {"text/html": quiz(name)})]


def open_links(name: str) -> str:
    """Return a line of Markdown that opens a lesson of the repository elsewhere."""
    place = REPOSITORY.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{place}/blob/main/notebooks/{name}"
    binder = f"https://mybinder.org/v2/gh/{place}/main?urlpath=lab/tree/work/{name}"
    return f"[Open in Colab]({colab}) ([how](../how-to/colab.md)) · [Open in Binder]({binder})"


def zip_planner(target: Path) -> None:
    """Write the modules of the planner's page."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for path in (path for pattern in PLANNER for path in sorted((ROOT / "course_lib").glob(pattern))):
            file.write(path, path.relative_to(ROOT))


def pack_planner() -> None:
    """Write what the planner's page loads: its modules in a zip file, and Python for browsers."""
    (STATIC / "pyodide").mkdir(parents=True, exist_ok=True)
    zip_planner(STATIC / "planner.zip")
    for name in PYODIDE:
        shutil.copy2(NPM / "pyodide" / name, STATIC / "pyodide")


def adapt(app: "Sphinx", what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep the first line of a package's docstring, since the others are about its files.

    A colon at the start keeps napoleon from taking the first words of a property, or of what is returned, for a type.
    """
    if what == "module":
        del lines[1:]
    starts = [at + 1 for at, line in enumerate(lines[:-1]) if line == "Returns:"]
    for at in (0, *starts) if what == "property" and lines else starts:
        lines[at] = re.sub(r"(?=\S)", ":", lines[at], count=1)


def read(app: "Sphinx", name: str, source: list[str]) -> None:
    """Lead links from notebooks to their pages, and put the repository's address in the place of the example."""
    if not name.startswith("lessons/"):
        source[0] = source[0].replace("](../../notebooks/", "](../lessons/").replace("](../notebooks/", "](lessons/")
    if REPOSITORY:
        source[0] = source[0].replace("https://github.com/OWNER/NAME", REPOSITORY)
        source[0] = source[0].replace("clone of the repository", f"clone of [the repository]({REPOSITORY})")


def describe(app: "Sphinx", name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Say what a page is about where somebody links to it: its title, its first paragraph, a picture."""
    paragraphs = doctree.findall(lambda node: node.tagname == "paragraph") if doctree else ()
    texts = (one.astext() for one in paragraphs if one.parent.tagname == "section")
    words = next((text for text in texts if not text.startswith("Open in Colab")), ABOUT["description"])
    picture = f"{html_baseurl}/_static/share.png" if html_baseurl else context["pathto"]("_static/share.png", 1)
    about = {
        "description": textwrap.shorten(words, 200, placeholder=" …"),
        "og:title": re.sub("<.*?>", "", context.get("title", project)),
        "og:type": "website",
        "og:image": picture,
        "twitter:card": "summary_large_image",
    }
    about["og:description"] = about["description"]
    names = {key: "property" if key.startswith("og:") else "name" for key in about}
    tags = (f'<meta {names[key]}="{key}" content="{escape(value)}">' for key, value in about.items())
    context["metatags"] = context.get("metatags", "") + "".join(tags)


def setup(app: "Sphinx") -> None:
    copy_lessons()
    pack_planner()
    app.connect("autodoc-process-docstring", adapt, priority=400)  # before napoleon
    app.connect("source-read", read)
    app.add_config_value("repository", REPOSITORY, "env")  # all pages are read again when the address changes
    app.connect("html-page-context", describe)
