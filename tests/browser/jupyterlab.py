"""JupyterLab for the browser tests: a real server, and what a learner does in it.

The functions that take a page use JupyterLab's own commands (`window.jupyterapp`), not its menus, which
change from release to release. Every wait has a limit; when it is reached Playwright raises TimeoutError.
"""

import os
import secrets
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Page

FOLDERS = ("COURSE_HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
START_SECONDS = 60
READY_MS = 60_000  # a notebook open, its kernel idle
NOTEBOOK = "window.jupyterapp?.shell.currentWidget"


@dataclass(frozen=True, kw_only=True)
class JupyterLab:
    """A server that answers."""

    url: str
    token: str
    process: subprocess.Popen[bytes]
    progress: Path  # the folder in which its kernels keep what the learner has done


@contextmanager
def served(command: Sequence[str], home: Path) -> Iterator[JupyterLab]:
    """JupyterLab on a free loopback port, with settings and progress of its own below `home`.

    command: what starts it; options for the port and the token are added. Its output goes to home/log.
    Raises RuntimeError with that output where it ends, or does not answer within START_SECONDS.
    """
    port, token = free_port(), secrets.token_hex(16)
    options = ["--no-browser", f"--port={port}", f"--IdentityProvider.token={token}"]
    folders = {name: home / name.lower() for name in FOLDERS}
    environment = {**os.environ, **{name: str(folder) for name, folder in folders.items()}}
    url, progress = f"http://127.0.0.1:{port}", folders["COURSE_HOME"]
    log = home / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen([*command, *options], stdout=output, stderr=output, env=environment) as process,
    ):
        try:
            server = JupyterLab(url=url, token=token, process=process, progress=progress)
            wait_until_it_answers(server, log)
            yield server
        finally:
            process.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_until_it_answers(server: JupyterLab, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/api/status?token={server.token}", timeout=5):
                return
        except OSError:  # also of a connection that the starting server resets
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not answer within {START_SECONDS} s:\n{log.read_text()}")


def wait_for(page: Page, expression: str, arg: object = None, *, seconds: float = READY_MS / 1000) -> None:
    """Wait until JavaScript gives something true. It is asked ten times a second, and not at each frame, as it would be
    by default: Chromium would draw all the time, on a core that the kernel needs."""
    page.wait_for_function(expression, arg=arg, timeout=seconds * 1000, polling=100)


def open_lab(page: Page, server: JupyterLab) -> None:
    """Open JupyterLab in a workspace of its own: no tab is restored. Where the page shows it, close every tab."""
    if page.url.startswith(f"{server.url}/lab/"):
        page.evaluate("[...window.jupyterapp.shell.widgets('main')].forEach(tab => tab.dispose())")
        return
    page.goto(f"{server.url}/lab/workspaces/{secrets.token_hex(4)}?token={server.token}")
    wait_for(page, "window.jupyterapp?.restored.then(() => true)")


def open_notebook(page: Page, server: JupyterLab, name: str) -> None:
    """Open the notebook `name` of the served folder and wait until its kernel is idle."""
    open_lab(page, server)
    page.evaluate("path => { window.jupyterapp.commands.execute('docmanager:open', { path }); }", name)
    wait_for(page, f"name => {NOTEBOOK}?.context?.path === name && {NOTEBOOK}.context.isReady", name)
    wait_until_idle(page)


def wait_until_idle(page: Page, seconds: float = READY_MS / 1000) -> None:
    wait_for(page, f"{NOTEBOOK}?.sessionContext?.session?.kernel?.status === 'idle'", seconds=seconds)


def choose_theme(page: Page, theme: Literal["Light", "Dark"]) -> None:
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })",
        f"JupyterLab {theme}",
    )
    page.wait_for_selector(f"body[data-jp-theme-name='JupyterLab {theme}']", state="attached", timeout=READY_MS)


def draw_all_cells(page: Page) -> None:
    """Keep the cells that are out of sight on the page; by default, JupyterLab takes them off."""
    page.evaluate(
        f"() => {{ const {{ content }} = {NOTEBOOK};"
        " content.notebookConfig = { ...content.notebookConfig, windowingMode: 'none' }; }"
    )


def run_all(page: Page, seconds: float = 120) -> None:
    """Run every cell, and wait until the last has ended or one has raised, and the kernel is idle."""
    page.evaluate(
        """() => { window.cellsEnded = false;
                   window.jupyterapp.commands.execute('notebook:run-all-cells')
                         .finally(() => { window.cellsEnded = true; }); }"""
    )
    wait_for(page, "window.cellsEnded", seconds=seconds)
    wait_until_idle(page, seconds)


def outputs(page: Page) -> list[dict[str, Any]]:
    """Every output of the open notebook, from first to last, as nbformat has them."""
    cells = page.evaluate(f"{NOTEBOOK}.content.model.sharedModel.toJSON().cells")
    return [output for cell in cells for output in cell.get("outputs", [])]


def errors(page: Page) -> list[str]:
    """What was raised in the open notebook, one line for each cell: "NameError: name 'x' is not defined"."""
    raised = [output for output in outputs(page) if output["output_type"] == "error"]
    return [f"{error['ename']}: {error['evalue']}" for error in raised]
