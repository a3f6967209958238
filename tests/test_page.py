"""The page of serve.py, in a browser."""

import pytest

from browser import chromium, wait_for, wait_for_text
from conftest import slow
from serving import SOURCES, TARGETS, ask

# What WCAG 2.1 AA asks for and a program can check: names of controls, contrast, language.
ACCESSIBILITY = """
const faults = [];
const luminance = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const rgb = colour => colour.match(/[\\d.]+/g).map(Number);
const background = element => {
    if (!element) return [255, 255, 255];
    const colour = rgb(getComputedStyle(element).backgroundColor), alpha = colour[3] ?? 1;
    if (alpha === 1) return colour;
    return background(element.parentElement).map((c, i) => alpha * colour[i] + (1 - alpha) * c);
};
if (!document.documentElement.lang) faults.push("the page has no language");
if (!document.title) faults.push("the page has no title");
const controls = "textarea, input, button, select, summary, [tabindex]";
for (const element of document.querySelectorAll(controls)) {
    const name = element.labels?.[0]?.textContent || element.ariaLabel || element.innerText;
    if (!name?.trim() && element.checkVisibility()) faults.push(element.outerHTML);
    const group = element.closest("[role=group], [role=grid]");
    if (element.matches("[tabindex]") && group?.querySelectorAll("[tabindex='0']").length !== 1) {
        faults.push(`not one stop of Tab in the group of ${element.outerHTML}`);
    }
}
for (const element of document.querySelectorAll("body *")) {
    if (![...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (["SCRIPT", "STYLE"].includes(element.tagName) || !element.checkVisibility()) continue;
    const pair = [rgb(getComputedStyle(element).color), background(element)].map(luminance);
    const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (contrast < 4.5) faults.push(`contrast ${contrast}: ${element.outerHTML}`);
    if (/^H\\d$/.test(element.tagName) && !element.parentElement.innerText.slice(20)) {
        faults.push(`no text follows ${element.outerHTML}`);
    }
}
if (document.documentElement.scrollWidth > innerWidth) faults.push("wider than the screen");
return faults;
"""
# Answers about a text with `one` in it take two seconds.
SLOW_ANSWERS = """
const request = fetch;
fetch = async (path, options) => {
    if (/one/.test(options?.body)) await new Promise(done => setTimeout(done, 2000));
    return request(path, options);
};
"""


class Page:
    """A browser with a page of the server."""

    def __init__(self, driver):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        self.driver, self.keys, self.actions = driver, Keys, lambda: ActionChains(driver)

    def open(self, address, width=1280, scheme="light"):
        """Open a page on a screen of a width, with light or dark colours."""
        metrics = dict(width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        colours = dict(features=[dict(name="prefers-color-scheme", value=scheme)])
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
        self.driver.get(address)
        wait_for(lambda: self.value("document.title") == "German to English")

    def find(self, selector):
        """The elements that a selector of CSS names."""
        return self.driver.find_elements("css selector", selector)

    def value(self, script):
        """The value of an expression of JavaScript."""
        return self.driver.execute_script(f"return {script}")

    def texts(self, selector, attribute="innerText"):
        """Their texts, read at once, since an answer replaces the elements."""
        return self.value(f"[...document.querySelectorAll('{selector}')].map(e => e.{attribute})")

    def is_shown(self, selector):
        return self.value(f"document.querySelector('{selector}').checkVisibility()")

    def press(self, *keys):
        self.actions().send_keys(*keys).perform()

    def type(self, selector, text):
        """Type a text in place of the one before."""
        (field,) = self.find(selector)
        field.send_keys(self.keys.CONTROL, "a")
        field.send_keys(text)

    def wait_for_translation(self, text):
        wait_for(lambda: self.value("byId('output').textContent") == text)
        wait_for(lambda: not self.find("[aria-busy=true]"))

    def wait_until_colours_differ(self, name):
        colours = f"#{name} span", "style.background"
        wait_for(lambda: len(set(self.texts(*colours))) > 1)

    def check(self):
        assert self.driver.execute_script(ACCESSIBILITY) == []
        assert self.driver.get_log("browser") == []  # no error, of the icon for example


@pytest.fixture
def page():
    with chromium() as driver:
        yield Page(driver)


def test_the_page(server, page):
    source, target = SOURCES[0], TARGETS[0]
    best = [own["text"] for own in ask(server, text=source)["translations"]]
    page.open(server)
    # On an empty page, there are examples.
    wait_for(lambda: source in page.texts("#examples button"))
    assert not page.is_shown("#sentence") and not page.is_shown("#copy")
    page.check()
    page.find("#examples button")[0].click()
    page.wait_for_translation(target)
    assert not page.is_shown("#examples") and not page.is_shown("#which")
    assert page.texts("#others bdi") == [*dict.fromkeys(best)]  # each text once
    page.check()

    second = page.texts("#others bdi")[1]
    page.find("#others button")[1].click()
    page.wait_for_translation(second)
    # The user types how the translation begins.
    page.type("#prefix", "They")
    wait_for(lambda: page.value("byId('output').textContent").startswith("They "))
    page.type("#prefix", page.keys.DELETE)
    page.wait_for_translation(target)

    permission = dict(permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.driver.execute_cdp_cmd("Browser.grantPermissions", permission)
    page.find("#copy")[0].click()
    wait_for_text(page.driver, "Copied.")
    assert page.value("navigator.clipboard.readText()") == target
    page.driver.refresh()  # keeps the text
    page.wait_for_translation(target)
    page.find("#exchange")[0].click()
    wait_for(lambda: page.value("document.title") == "English to German")
    fields = page.value("[byId('from').value, byId('to').value, byId('text').value]")
    assert fields == ["en", "de", target]
    wait_for(lambda: page.value("byId('output').textContent") not in ("", target))


def test_an_error_and_a_late_answer(server, page):
    """The translation of another text than that on the page is not shown."""
    page.open(server)
    page.type("#text", SOURCES[0])
    page.wait_for_translation(TARGETS[0])
    page.driver.execute_script("setText('Hund '.repeat(30000))")
    wait_for(lambda: page.find("#note.error"))
    assert page.value("byId('output').textContent") == "" and not page.is_shown("#sentence")
    page.driver.execute_script(SLOW_ANSWERS)
    for text in ("one Hund", SOURCES[1]):
        page.driver.execute_script("setText(arguments[0])", text)
    page.wait_for_translation(TARGETS[1])
    late = "performance.getEntriesByName(location + 'translate').length"
    count = page.value(late)
    wait_for(lambda: page.value(late) > count)
    assert page.value("byId('output').textContent") == TARGETS[1]
    page.driver.execute_script("fetch = () => Promise.reject()")
    page.type("#text", SOURCES[2])
    wait_for_text(page.driver, "No answer. Is serve.py still running?")
    assert page.value("byId('output').textContent") == ""


def test_the_page_shows_a_paragraph(server, page):
    """By keyboard, on the width of a phone."""
    page.open(server, width=360)
    keys, text = page.keys, f"{TARGETS[0]} {TARGETS[1]}\n{TARGETS[2]}"
    page.type("#text", f"{SOURCES[0]} {SOURCES[1]}\n{SOURCES[2]}")
    page.wait_for_translation(text)
    height = "byId('text').clientHeight - byId('text').scrollHeight"
    assert page.value(height) >= 0  # all of the text is seen
    assert page.texts("#original") == [SOURCES[0]]
    # Tab reaches the translation, arrow keys its sentences, and Enter chooses one.
    page.find("#copy")[0].send_keys(keys.TAB)
    page.press(keys.ARROW_RIGHT, keys.ENTER)
    wait_for_text(page.driver, "Sentence 2 of 3", SOURCES[1])
    assert page.texts("#output [aria-pressed=true]") == [TARGETS[1]]
    wait_for(lambda: not page.find("[aria-busy=true]"))
    page.check()
    # The choice for a sentence stays when another one is chosen, and when another one changes.
    page.find("#others button")[1].click()
    chosen = page.texts("#output span")[1]
    assert chosen != TARGETS[1]
    page.find("#output span")[0].click()
    assert page.texts("#original") == [SOURCES[0]]
    page.type("#prefix", "They")
    wait_for(lambda: page.texts("#output span")[0].startswith("They "))
    first = page.texts("#output span")[0]
    page.find("#text")[0].send_keys(" " + SOURCES[1])
    page.wait_for_translation(f"{first} {chosen}\n{TARGETS[2]} {TARGETS[1]}")
    assert page.texts("#prefix", "value") == ["They"]
    # A sentence that changes is a new one.
    page.type("#text", f"{SOURCES[2]} {SOURCES[1]}")
    page.wait_for_translation(f"{TARGETS[2]} {chosen}")
    assert page.texts("#prefix", "value") == [""]
    page.type("#text", f"{SOURCES[0]} {SOURCES[1]}")
    page.wait_for_translation(f"{TARGETS[0]} {chosen}")
    # HTML is text here, and each line has the direction of its script.
    page.type("#text", "<img src=x onerror=alert(1)>")
    wait_for(lambda: "<img" in page.value("byId('output').textContent"))
    assert page.value("document.images.length") == 0
    page.driver.execute_script("setText('مرحبا')")
    assert page.value("getComputedStyle(byId('text')).direction") == "rtl"


@slow
def test_the_page_shows_how_a_sentence_was_translated(server, page):
    find, texts, keys = page.find, page.texts, page.keys

    def wait_until_shown(condition):
        """Wait until the condition is true and no answer is on its way."""
        wait_for(lambda: condition() and not find("[aria-busy=true]"))

    def looks():
        names = page.value("performance.getEntriesByType('resource').map(entry => entry.name)")
        return sorted({name.rpartition("/")[2] for name in names if "/look/" in name})

    page.open(server, scheme="dark")
    page.type("#text", SOURCES[0])
    page.wait_for_translation(TARGETS[0])
    assert looks() == []  # nothing is computed yet
    (summary, _) = find("summary")
    summary.send_keys(keys.ENTER)
    wait_until_shown(lambda: texts("#map td") and texts("#likely li"))
    assert looks() == ["attention", "steps"]
    assert len(texts("#map tbody th")) == len(texts("#likely li"))
    for name, text in (("source", SOURCES[0]), ("target", TARGETS[0])):  # no space indents the line
        assert "".join(texts(f"#{name} span", "textContent")) == text
    page.actions().move_to_element(find("#source span")[0]).perform()
    page.wait_until_colours_differ("target")
    # By keyboard: Tab leads to the tokens, and after them. Arrow keys move in them.
    summary.send_keys(keys.TAB)
    page.press(keys.ARROW_DOWN)
    assert page.driver.switch_to.active_element == find("#target span")[0]
    page.wait_until_colours_differ("source")
    wait_for_text(page.driver, "has the probability 0.")
    page.press(keys.TAB)
    assert page.driver.switch_to.active_element == find("#kind")[0]
    find("#head")[0].send_keys(keys.TAB)
    page.press(keys.ARROW_RIGHT, keys.ARROW_DOWN)
    row, column = texts("#map tbody th")[1], texts("#map thead th")[1]
    wait_for_text(page.driver, f"Row {row}, column {column}: ")
    find("#kind")[0].send_keys("decoder")
    wait_until_shown(lambda: texts("#map .masked") and texts("#map thead th")[0] == "<S>")
    find("details details summary")[0].send_keys(keys.ENTER)
    wait_until_shown(lambda: texts("#tree .node"))
    page.check()
    best = texts("#tree .node.taken")
    assert "■ 1" in best[-1]
    find("#others button")[1].click()
    wait_until_shown(lambda: texts("#tree .node.taken") != best)
    assert "■" in texts("#tree .node.taken")[-1]
    # Another sentence is shown in the open panel.
    before = texts("#map tbody th")
    page.type("#text", SOURCES[1])
    wait_until_shown(lambda: texts("#map tbody th") != before)
    page.check()
