"""A bundle that was trained with windows is scored in windows, whoever computes."""

import asyncio
import json
import math
from dataclasses import replace

import pytest

import alora
from alora.bundle.write import write_bundle
from alora.cli import main
from alora.data.conversation import Conversation, Message
from alora.guard.core import GuardCore
from alora.guard.reader import Reading, Served
from alora.guard.reading_in_process import PackedReader
from alora.prefix.scorer import Scorer
from alora.prompt.render import Renderer
from alora.verdict import make_verdict
from alora.wire.native import GuardRequest
from tests.integration.bundle.conftest import PROMPT, make_contents
from tests.toy_recipe import toy_base_folder

LONG = [{"role": "user", "content": f"Message {i}: which pills do I take for {i} headaches?"} for i in range(60)]


@pytest.fixture(scope="module")
def bundle(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    contents = make_contents(base, folder / "adapter")
    return write_bundle(replace(contents, prompt=replace(PROMPT, truncation="windows")), folder / "advice", 2)


@pytest.fixture(scope="module")
def location(tmp_path_factory):
    return toy_base_folder(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def wanted(base, bundle):
    """The probability by each window alone, most of them below the highest."""
    renderer = Renderer(base.tokenizer, bundle.manifest.prompt)
    talk = Conversation("x", tuple(Message(one["role"], one["content"]) for one in LONG))
    with Scorer(base, [bundle.weights]) as scorer:
        rows = [scorer.label_logits(prefix, [bundle.suffix])[0] for prefix in renderer.windows(talk)]
    found = [make_verdict(bundle.policy, row.tolist(), bundle.calibration, "").probability for row in rows]
    assert len(found) > 3
    assert max(found) > sorted(found)[len(found) // 2]
    return found


def test_the_guard_gives_the_highest_of_any_window(base, bundle, wanted):
    renderer, served = Renderer(base.tokenizer, bundle.manifest.prompt), [Served.of(bundle)]
    guard = GuardCore(served, renderer, PackedReader(base, [bundle]))
    answer = asyncio.run(guard.answer(GuardRequest(messages=LONG)))
    assert answer.verdicts[0].probability == pytest.approx(max(wanted), abs=1e-6)
    assert answer.usage.computed_tokens == answer.usage.prefix_tokens + answer.usage.suffix_tokens


@pytest.mark.parametrize("bad", [Reading(0, error="lost"), Reading(0, (math.nan, 9.0))], ids=["lost", "not finite"])
def test_a_window_without_an_answer_is_no_verdict(bundle, base, bad):
    class Fails:
        windows = 0

        async def read(self, prefix, asked, request):
            self.windows += 1
            yield bad if self.windows == 2 else Reading(0, (-9.0, 9.0))

    guard = GuardCore([Served.of(bundle)], Renderer(base.tokenizer, bundle.manifest.prompt), Fails())
    (verdict,) = asyncio.run(guard.answer(GuardRequest(messages=LONG))).verdicts
    assert (verdict.status, verdict.flagged, verdict.probability) == ("failed", True, None)


def test_load_and_the_command_line_give_it_too(bundle, wanted, location, tmp_path, capsys):
    with alora.load(bundle.folder, base=location) as battery:
        verdicts = battery.score(LONG)
        assert [len(list(battery.score_many([LONG, LONG[:1], LONG])))] == [3]
    assert (verdicts.windows, verdicts.truncation) == (len(wanted), None)
    assert verdicts["advice"].probability == pytest.approx(max(wanted), abs=1e-6)
    file = tmp_path / "talk.json"
    file.write_text(json.dumps({"messages": LONG}))
    assert main(["score", f"artifact={bundle.folder}", f"base.source={location}", str(file)]) == 0
    assert f"scored in {len(wanted)} windows" in capsys.readouterr().err
