"""Take docs/tensorboard.png, a screenshot of TensorBoard in Chromium.

python docs/figures/tensorboard_page.py --logdir logdir/sample_model
"""

import io
import subprocess
import sys
import time

from PIL import Image
from style import ROOT, draw_pictures

sys.path.append(str(ROOT / "tests"))

from browser import chromium, wait_for_text
from processes import free_ports

WINDOW = 1080, 1500  # pixels
LOADING_SECONDS = 8  # in which images load, and lines are drawn
# For each tab, with a filter of tags: texts to wait for, and the rows of pixels to keep.
TABS = {
    "scalars&tagFilter=mean_loss|dev_bleu": (("dev_bleu", "mean_loss"), (66, 465)),
    "images&tagFilter=cross": (("attention/cross",), (120, 945)),
}
PANE, SCROLL_BAR = 272, 18  # pixels, at the left and at the right, which are left out


def start_tensorboard(logdir, port):
    """Start TensorBoard, and return its process."""
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", f"--port={port}"]
    options = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    server = subprocess.Popen([*command, "--host=127.0.0.1"], **options)
    for line in server.stderr:
        if "Press CTRL+C" in line:
            break
    return server


def take_screenshot(logdir):
    """Join parts of two tabs, one below the other."""
    (port,) = free_ports(1)
    server, parts = start_tensorboard(logdir, port), []
    try:
        with chromium() as driver:
            driver.set_window_size(*WINDOW)
            for tab, (texts, (top, bottom)) in TABS.items():
                driver.get("about:blank")
                driver.get(f"http://127.0.0.1:{port}/#{tab}")
                wait_for_text(driver, *texts)
                time.sleep(LOADING_SECONDS)
                page = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
                parts.append(page.crop((PANE, top, page.width - SCROLL_BAR, bottom)))
    finally:
        server.kill()
        server.wait()
    joined = Image.new("RGB", (parts[0].width, sum(part.height for part in parts)), "white")
    top = 0
    for part in parts:
        joined.paste(part, (0, top))
        top += part.height
    return joined


PICTURES = {"tensorboard.png": take_screenshot}

if __name__ == "__main__":
    draw_pictures(PICTURES, __doc__, str, logdir="logdir/sample_model")
