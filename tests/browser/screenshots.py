"""`make screenshots`: the pictures in docs/images, from a real run of a script in this repository.

A DQN script is recorded with `hotloop run`; while it trains, the live page of `hotloop serve` is taken, and
afterwards its report: desktop, phone, dark, and as it prints.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from hotloop.workflows.serve import prepare
from tests.browser.conftest import FLAGS

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
SCRIPT = ROOT / "tests" / "truth" / "development" / "dqn_cartpole_memory" / "slow.py"
STEPS = "12000"
# name -> width, height, colour scheme, whole page
VIEWS = {
    "report": (1280, 860, "light", False),
    "report-dark": (1280, 860, "dark", False),
    "report-phone": (390, 844, "light", False),
    "report-whole": (1280, 860, "light", True),
}


def shoot(browser: Any, address: str, name: str, size: tuple[int, int], scheme: str, whole: bool) -> None:
    """Save one picture, in 128 colours, which is enough for a page."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file, full_page=whole)
    context.close()
    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
    print(f"wrote {file.relative_to(ROOT)} ({file.stat().st_size >> 10} KiB)")


def main() -> int:
    """Record, look, and write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    chromium = shutil.which("chromium")
    if chromium is None:
        print("there is no chromium: make browser", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        shutil.copy(SCRIPT, folder / "dqn.py")
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        words = [sys.executable, "-m", "hotloop", "run", "--capture", "runs/dqn", "--", "python", "dqn.py"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path}
        job = subprocess.Popen(
            [*words, "--steps", STEPS], cwd=folder, stdout=subprocess.DEVNULL, env=environment
        )
        while not (folder / "runs" / "dqn" / "parts").exists():
            time.sleep(0.5)
        served = prepare(folder / "runs")
        serving = threading.Thread(target=served.run)
        serving.start()
        page = browser.new_page()
        page.goto(served.address)
        live = page.locator('#runs-table a[href^="live/"]')
        live.wait_for()  # from then on the job is under way
        time.sleep(15)  # it fills its memory first
        address = live.get_attribute("href")
        page.close()
        shoot(browser, f"{served.address}{address}", "live", (1280, 860), "light", whole=False)
        job.wait()
        served.stop()
        serving.join()
        report = folder / "report.html"
        subprocess.run(
            [sys.executable, "-m", "hotloop", "report", "runs/dqn", "-o", report], cwd=folder, check=True
        )
        for name, (width, height, scheme, whole) in VIEWS.items():
            shoot(browser, report.as_uri(), name, (width, height), scheme, whole)
        page = browser.new_page()
        page.goto(report.as_uri())
        (IMAGES / "report.pdf").write_bytes(page.pdf(format="A4"))
        browser.close()
    return job.returncode


if __name__ == "__main__":
    sys.exit(main())
