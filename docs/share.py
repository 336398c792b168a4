"""Draw the picture that a link to the site shows, docs/static/share.png: `make screenshot`. Look at it afterwards."""

from pathlib import Path

from playwright.sync_api import sync_playwright

from course_lib import plots
from tests.browser.conftest import CHROMIUM_FLAGS, find_chromium

PICTURE = Path(__file__).with_name("static") / "share.png"
SIZE = {"width": 1200, "height": 630}  # CSS pixels; the size that sites cut a preview to
PAGE = """
    <body style="margin: 0; padding: 20px 60px; font: 26px sans-serif; background: white; color: #1f2328">
    <h1 style="margin: 0; font-size: 50px">Sharded</h1>
    <p style="margin: 4px 0 10px">Build ZeRO on a laptop. Training 7.5 billion parameters takes, on each GPU:</p>
    <div style="zoom: 1.28">{}</div>
"""

if __name__ == "__main__":
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        page = chromium.new_page(viewport=SIZE)
        page.set_content(PAGE.format(plots.move_zero().still.image))
        page.screenshot(path=PICTURE)
        chromium.close()
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")
