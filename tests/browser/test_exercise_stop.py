"""The stop button of an exercise, which must be heard while the kernel is busy."""

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyterlab import READY_MS, JupyterLab, open_notebook, wait_until_idle

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = [
    "import time\nimport torch.distributed as dist\nfrom course_lib import exercise",
    '@exercise("ranks.hello")\ndef hello():\n    time.sleep(9)',
    "print('the next cell ran')",
]


def test_the_stop_button_of_a_check_ends_it(shared_page: Page, jupyterlab: JupyterLab, notebooks: Path) -> None:
    page = shared_page
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, notebooks / "stop.ipynb")
    open_notebook(page, jupyterlab, "stop.ipynb")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")

    expect(page.get_by_text("Checked 0 of 6 cases").first).to_be_visible(timeout=READY_MS)
    page.get_by_role("button", name="Stop").click()

    # Without the click the check would tell of the time limit, or that nothing was returned.
    expect(page.get_by_text("the check was stopped after 0 of 6 cases").first).to_be_visible(timeout=READY_MS)
    expect(page.get_by_text("the next cell ran", exact=True)).to_be_visible(timeout=READY_MS)
    wait_until_idle(page)
