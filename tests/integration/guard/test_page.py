"""Pages in a real browser: the guard's, with policies and verdicts as its routes give them, the key, and text that is
not markup; a run's."""

import json
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from alora.evaluation.report_html import render_overview, render_page
from alora.guard.core import GuardCore
from alora.guard.reader import Served
from alora.guard.reading_in_process import PackedReader
from alora.guard.standalone import make_app
from tests.integration.guard.browser import CHROMIUM, browsing
from tests.integration.guard.conftest import MESSAGES, listening
from tests.unit.evaluation.test_report_html import make_page

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium")
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
TEXT = "User: Which pills for a headache?\nAssistant: Take two."


@pytest.fixture(scope="module")
def hostile(base, bundles, renderer):
    """A guard one of whose policies has markup for title and rule."""
    first, second = map(Served.of, bundles)
    return GuardCore(
        [
            replace(first, manifest=replace(first.manifest, policy=replace(first.policy, title=HOSTILE, rule=HOSTILE))),
            second,
        ],
        renderer,
        PackedReader(base, bundles),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser") / "profile") as tab:
        yield tab


def ask(page, text, key=""):
    page.until("!by('ask').disabled")
    page.run(f"by('talk').value = {json.dumps(text)}; by('key').value = {json.dumps(key)}; by('ask').click()")
    page.until("!by('ask').disabled")
    rows = "[...document.querySelectorAll('#verdicts tr')].map(row => [...row.cells].map(cell => cell.innerText))"
    return page.run(f"by('problem').textContent || {rows}")


@in_a_browser
def test_every_policy_before_it_is_asked_and_its_verdict_after(page, hostile, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with listening(make_app(hostile)) as url:
        with TestClient(make_app(hostile)) as client:
            key = {"Authorization": "Bearer secret"}
            wanted = client.post("/v1/guard", json={"messages": MESSAGES}, headers=key).json()
        page.open(f"{url}/")
        assert ask(page, TEXT) == "401: Unauthorized"
        policies = ask(page, "", "secret")
        for text in (TEXT, json.dumps(MESSAGES), json.dumps({"messages": MESSAGES})):
            rows = ask(page, text, "secret")
            for row, policy, verdict, served in zip(rows, policies, wanted["verdicts"], hostile.known, strict=True):
                named = f"{served.policy.title}\n{served.policy.rule}\n{verdict['adapter']}"
                threshold = f"{verdict['threshold']:.4f}"
                assert policy == [named, "", "", threshold]
                assert row == [named, verdict["label"], f"{verdict['probability']:.4f}", threshold]
        assert page.run("by('action').textContent") == {"block": "Blocked", "allow": "Allowed"}[wanted["action"]]
        usage = wanted["usage"]
        assert f"{usage['computed_tokens']} tokens computed, {usage['prefix_tokens']} from the cache" in page.run(
            "by('cost').textContent"
        )
        assert page.run("document.title") == "alora guard"
        assert page.run("document.querySelectorAll('img').length") == 0
        assert page.right_edge(390) <= 390


@in_a_browser
def test_a_phone_shows_a_runs_pages_whole(page, tmp_path):
    made = make_page()
    overview = render_overview({"refunds/report.html": made.judged.evaluations}, {})
    for name, text in (("report", render_page(made)), ("overview", overview)):
        (tmp_path / f"{name}.html").write_text(text)
        page.open((tmp_path / f"{name}.html").as_uri())
        assert page.right_edge(390) <= 390


@in_a_browser
def test_nothing_but_the_pages_own_script_runs(page, hostile):
    with listening(make_app(hostile)) as url:
        page.open(f"{url}/")
        page.run(
            "for (const text of ['document.title = \"taken\"']) { const s = document.createElement('script');"
            " s.textContent = text; document.body.append(s) }"
        )
        assert page.run("document.title") == "alora guard"
        assert page.run("fetch('http://127.0.0.1:1/x').catch(error => 'refused')") == "refused"
        assert any("Content Security Policy" in entry for entry in page.log)


def test_the_page_alone_needs_no_key(guard, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with TestClient(make_app(guard)) as client:
        answer = client.get("/")
        assert (answer.status_code, "script-src 'sha256-" in answer.headers["Content-Security-Policy"]) == (200, True)
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        for host in ("x/?", "x/#", "x/;"):  # no Host makes another path look like the page's
            assert client.get("/v1/guard/policies", headers={"Host": host}).status_code == 401
