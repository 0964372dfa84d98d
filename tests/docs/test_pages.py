"""The pages themselves: the fast ones run here, all of them by `make docs`."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from alora.cli import VERBS, main
from scripts.run_docs import ROOT, alora_commands, read_blocks, run_page
from scripts.write_reference import PAGES, rewritten

DOCS = sorted((ROOT / "docs").glob("**/*.md"))
ALL = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
FAST = ("configuration.md",)
_INLINE = re.compile(r"(?<!`)`(alora [^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@pytest.mark.parametrize("name", FAST)
def test_every_command_of_a_fast_page_runs(name):
    run_page(ROOT / "docs" / name)


def test_every_command_of_the_quickstart_runs(tmp_path):
    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    assert text.count("\nalora train\n") == 1
    fewer_rows = "sed -i -n 1~4p validation.jsonl test.jsonl"
    short = "alora train training.max_steps=2 training.batch_size=2 identity.conversations=1"
    page = tmp_path / "quickstart.md"
    page.write_text(text.replace("\nalora train\n", f"\n{fewer_rows}\n{short}\n"), encoding="utf-8")
    run_page(page)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_no_block_hides_a_command(page):
    read_blocks(page)


def inline_commands(page: Path) -> list[list[str]]:
    """Commands in running text and tables; those with a placeholder or with dots are prose.

    A sweep (``-m``) looks for the files of all its jobs first; tests/integration/sweep runs those.
    """
    text = page.read_text(encoding="utf-8")
    spans = [match[1].replace("\\|", "|") for match in _INLINE.finditer(text) if " -m " not in match[1]]
    found = [command for span in spans for command in alora_commands(span)]
    return [command for command in found if {"VERB", "WORKLOAD", "..."}.isdisjoint(command)]


def composes(command: list[str], folder: Path, monkeypatch) -> bool:
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main([*command[1:], "--cfg", "job"]) == 0


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_every_command_in_running_text_composes(page, tmp_path, monkeypatch):
    wrong = [command for command in inline_commands(page) if not composes(command, tmp_path, monkeypatch)]
    assert wrong == []


def test_every_alert_has_a_line_in_the_runbook():
    alerts = re.findall(r"alert: (\w+)", (ROOT / "deploy/prometheus/alora-alerts.yaml").read_text(encoding="utf-8"))
    page = (ROOT / "docs/guard.md").read_text(encoding="utf-8")
    assert alerts
    assert set(alerts) <= set(re.findall(r"^\| `(Alora\w+)` \|", page, re.MULTILINE))


def test_a_false_command_in_running_text_is_found(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("Run `alora train trainin.epochs=1` or `alora train training.epochs=1`.\n")
    good = [composes(command, tmp_path, monkeypatch) for command in inline_commands(page)]
    assert good == [False, True]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_of_the_front_pages_lead_somewhere(page):
    targets = [match["target"] for match in _LINK.finditer(page.read_text(encoding="utf-8"))]
    inner = [target.partition("#")[0] for target in targets if not target.startswith("https://")]
    assert inner or page.name != "README.md"
    assert [target for target in inner if target and not (ROOT / target).exists()] == []


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == [str(page.relative_to(ROOT / "docs")) for page in DOCS]


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_what_the_code_says(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert "<!-- generated: " in text
    assert rewritten(text) == text, "run: python scripts/write_reference.py"


def test_an_old_reference_is_found():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    old = text.replace("`adapter.rank=16`", "`adapter.old_rank=16`")
    assert old != text
    assert rewritten(old) == rewritten(text)


def test_every_verb_is_explained():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert all(f"| `alora {verb}" in text for verb in VERBS)
