"""Headless Chromium, for the tests of web pages."""

import contextlib
import shutil
import time

import pytest

from conftest import INSTALL_EXTRAS


@contextlib.contextmanager
def chromium():
    """Context manager: a driver of Chromium with an empty profile. Skips the test without it."""
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


def wait_for(condition, seconds=90):
    """Call `condition` until its result is true, and return the result."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.2)
    raise AssertionError(f"the condition is still false after {seconds} seconds")


def wait_for_text(driver, *needles):
    """Wait until all of these texts are on the page."""

    def all_are_shown():
        text = " ".join(driver.execute_script("return document.body.innerText").split())
        return all(needle in text for needle in needles)

    wait_for(all_are_shown)
