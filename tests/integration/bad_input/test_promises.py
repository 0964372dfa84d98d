"""The table: every bad input is refused in one clear message that names the culprit, and changes nothing on disk.

``test_data``, ``test_settings``, ``test_bases_and_artifacts`` and ``verbs`` hold the cases.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.bad_input import test_bases_and_artifacts, test_data, test_settings, verbs
from tests.integration.bad_input.conftest import ANOTHER, Case, breaches

TABLES = [module.CASES for module in (test_data, test_settings, verbs, test_bases_and_artifacts)]
TABLE = {name: case for table in TABLES for name, case in table.items()}
pytestmark = pytest.mark.timeout(120)


MESSAGES = Path(__file__).with_name("messages.json")


@pytest.fixture(scope="session")
def messages(request) -> Iterator[dict[str, str]]:
    """What each case prints; ``--update-messages`` (with ``-n 0``) writes what it prints now."""
    if not request.config.getoption("update_messages"):
        yield json.loads(MESSAGES.read_text())
        return
    heard: dict[str, str] = {}
    yield heard
    MESSAGES.write_text(json.dumps(heard, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("name", TABLE)
def test_promises(name, place, here, capsys, messages):
    found = breaches(TABLE[name], place, here, capsys, message=messages.get(name, ""))
    if name not in messages and found:
        messages[name] = found.pop().removeprefix(ANOTHER)
    assert found == []


def test_no_case_hides_another():
    assert len(TABLE) == sum(map(len, TABLES))


BROKEN = {
    "an exit code of success": (lambda here: 0, "exit code 0, not 2"),
    "a culprit without a name": (lambda here: say("something is wrong"), "'rows.jsonl' is not in"),
    "silence": (lambda here: 2, "it fails without a word"),
    "a traceback": (lambda here: say("rows.jsonl\nTraceback (most recent call last):"), "'Traceback' is in"),
    "a file made": (lambda here: (here / "new").touch() or say("rows.jsonl"), "new was changed, made or removed"),
    "a file removed": (lambda here: (here / "rows.jsonl").unlink() or say("rows.jsonl"), "rows.jsonl was changed"),
}


def say(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 2


@pytest.mark.parametrize("name", BROKEN)
def test_every_broken_promise_is_seen(name, place, here, capsys):
    """The negative controls of the check itself."""
    command, breach = BROKEN[name]
    case = Case("check", words=["rows.jsonl"], files={"rows.jsonl": "bad"})
    found = breaches(case, place, here, capsys, lambda _: command(here))
    assert found
    assert any(breach in line for line in found), found
