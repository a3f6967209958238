"""Headless Chromium, for the tests of pages."""

import contextlib
import shutil
import time

import pytest

from conftest import INSTALL_EXTRAS

# All text of a page: TensorBoard's is in shadow roots, and in frames.
TEXT = """
function text(node) {
    if (node.nodeType === Node.TEXT_NODE) return node.textContent + " ";
    if (["STYLE", "SCRIPT", "NOSCRIPT"].includes(node.tagName)) return "";
    const inner = [node.shadowRoot, node.contentDocument && node.contentDocument.body];
    return [...inner.filter(Boolean), ...node.childNodes].map(text).join("");
}
return text(document.body);
"""
PICTURES = """
function pictures(node) {
    const here = node.tagName === "IMG" ? [node.naturalWidth] : [];
    return [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes]
        .reduce((all, inner) => all.concat(pictures(inner)), here);
}
return pictures(document.body);
"""


@contextlib.contextmanager
def chromium():
    """A driver of Chromium with an empty profile; the test is skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason=INSTALL_EXTRAS)
    paths = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in paths:
        pytest.skip("no Chromium. To run them: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for flag in ("headless", "no-sandbox", "disable-gpu", "window-size=1500,1100"):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options, webdriver.ChromeService(paths[1]))
    try:
        yield driver
    finally:
        driver.quit()


def wait_for(found, seconds=90):
    """What `found` returns, once it is true."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if result := found():
            return result
        time.sleep(0.2)
    raise AssertionError(f"nothing came in {seconds} seconds")


def words_on(driver):
    return " ".join(driver.execute_script(TEXT).split())


def widths_on(driver):
    """Of the pictures that are loaded, pixels."""
    return [width for width in driver.execute_script(PICTURES) if width]


def shows(driver, *needles):
    """Wait until all of these are on the page."""
    try:
        wait_for(lambda: all(needle in words_on(driver) for needle in needles))
    except AssertionError:
        missing = [needle for needle in needles if needle not in words_on(driver)]
        raise AssertionError(f"not on the page: {missing}: {words_on(driver)}") from None
