"""``alora compare`` on a toy base, with a judge behind a real endpoint: from rows to figures that can be checked."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from alora.base.load import load_base
from alora.cli import main
from alora.config.schema import BaseSettings, CompareSettings, DataSettings, PolicySettings, PromptSettings, Recipe
from alora.evaluation.calibration import fit_operating_point, positive_probability
from alora.lab.compare.encoder import STRENGTHS, fit_and_score, hidden_states
from alora.lab.compare.task import MethodRun, Workbench, read_task
from alora.prompt.render import Renderer
from tests.integration.lab.compare import places
from tests.integration.lab.compare.places import make_place, write_rows
from tests.unit.llm.endpoint import completion, endpoint, says

WORDS = re.compile(r"message \d+ \d+ says")
ARMS = ("alora", "lora", "prompt", "judge", "encoder", "encoder_frozen", "probe", "bag_of_words")
CHOSEN = f"compare.arms=[{','.join(ARMS)}]"


def overrides(place, run, *more):
    return places.overrides(place, run, f"compare.encoder={place / 'base'}", *more)


def judge(number: int, body: dict) -> object:
    """Fails at every fifth request, never answers about row 2-3, and else sees the word."""
    rule, text = body["messages"][1]["content"].split("<conversation>")
    if "message 2 3 says" in text:
        return completion("I had rather not say.")
    if number % 5 == 0:
        return 503
    return says("violation" if ("says red" in text) == ("No red" in rule) else "ok", 80)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("compare"))


@pytest.fixture(scope="module")
def server():
    with endpoint(judge) as started:
        yield started


@pytest.fixture(scope="module")
def compared(place, server):
    """A whole comparison, called again, which must ask the judge and train nothing."""
    more = (f"judge.url={server.url}", "judge.model=m", CHOSEN)
    command = [
        "compare",
        *overrides(place, place / "run", *more, "compare.seeds=[0,1]", "compare.ranks=[2,4]", "training.max_steps=4"),
    ]
    codes = [main(command)]
    first, asked = json.loads((place / "run/compare.json").read_text()), len(server.bodies)
    codes.append(main(command))
    again = json.loads((place / "run/compare.json").read_text())
    assert len(server.bodies) == asked
    assert codes == [0, 0]
    assert all(first[key] == again[key] for key in ("scores", "methods", "gaps"))
    return first, place / "run"


def of(found, arm, policy="red", rank=None):
    return [s for s in found["scores"] if (s["arm"], s["policy"], s["rank"]) == (arm, policy, rank)]


def figures(found, arm, policy="red", rank=None):
    (item,) = [m for m in found["methods"] if (m["arm"], m["policy"], m["rank"]) == (arm, policy, rank)]
    return item


def test_every_arm_answers_on_the_same_rows(compared):
    found = compared[0]
    assert {item["arm"] for item in found["scores"]} == set(ARMS)
    for item in found["scores"]:
        for part, seed in (("validation", 1), ("test", 2)):
            ids = [f"{seed}-{number}" for number in range(24) if item["arm"] != "judge" or (seed, number) != (2, 3)]
            assert item[part]["ids"] == ids
            assert item[part]["asked"] == 24
    trained = [(s["seed"], s["rank"]) for s in of(found, "alora", rank=2) + of(found, "lora", rank=4)]
    assert trained == [(0, 2), (1, 2), (0, 4), (1, 4)]
    assert {item["facts"]["training_rows"] for item in found["scores"] if "training_rows" in item["facts"]} == {40}


def test_every_figure_follows_from_the_raw_scores(compared):
    found = compared[0]
    settings = Recipe().evaluation
    settings.bootstrap = 0
    for arm, rank in (("alora", 4), ("lora", 2), ("prompt", None), ("judge", None), ("bag_of_words", None)):
        ours: dict[str, list[float]] = {"auroc": [], "auprc": [], "f1": [], "accuracy": []}
        for item in of(found, arm, rank=rank):
            known, asked = item["validation"], item["test"]
            point = fit_operating_point(np.array(known["logits"]), np.array(known["label_ids"]), settings)
            chance = positive_probability(np.array(asked["logits"]), point.temperature, point.bias)
            truth = np.array(asked["label_ids"]) == 0
            ours["auroc"].append(roc_auc_score(truth, chance))
            ours["auprc"].append(average_precision_score(truth, chance))
            ours["f1"].append(f1_score(truth, chance >= point.threshold))
            ours["accuracy"].append(accuracy_score(truth, chance >= point.threshold))
        told = figures(found, arm, rank=rank)["figures"]
        for name, values in ours.items():
            assert told[name]["value"] == pytest.approx(np.mean(values), abs=1e-12)
            assert told[name]["low"] <= told[name]["value"] <= told[name]["high"]


def test_no_word_of_a_conversation_is_kept(compared):
    for file in [compared[1] / "compare.md", *compared[1].rglob("*.json*")]:
        assert not WORDS.search(file.read_text()), file
    assert WORDS.search((compared[1].parent / "test.jsonl").read_text())


def test_labels_that_say_nothing_give_chance_and_no_difference(place, tmp_path):
    """Negative control: nothing can be learned, so no method may look good or better than another."""
    other = make_place(tmp_path / "place")
    for seed, name in enumerate(("train", "validation", "test")):
        write_rows(other / f"{name}.jsonl", 120, seed, shuffled=True)
    arms = "compare.arms=[alora,lora,encoder,encoder_frozen,probe,bag_of_words]"
    assert main(["compare", *overrides(other, tmp_path / "run", arms, "compare.seeds=[0]", "adapter.rank=2")]) == 0
    found = json.loads((tmp_path / "run/compare.json").read_text())
    for item in found["methods"]:
        auroc = item["figures"]["auroc"]
        assert abs(auroc["value"] - 0.5) < 0.12, item["arm"]
        assert auroc["low"] < 0.55
    assert all(gap["p_holm"] > 0.05 for gap in found["gaps"] if gap["policy"])


def recipe(place, **compare) -> Recipe:
    return Recipe(
        base=BaseSettings(source=str(place / "base")),
        policy=PolicySettings(file=str(place / "policies.yaml")),
        policies=["red", "blue"],
        data=DataSettings(*(str(place / f"{name}.jsonl") for name in ("train", "validation", "test"))),
        prompt=PromptSettings(max_prefix_tokens=200),
        compare=CompareSettings(**compare),
    )


def test_the_prompted_base_and_the_probe_read_the_stock_model(compared, place):
    task = read_task(recipe(place))
    base = load_base(BaseSettings(source=str(place / "base")))
    bench = Workbench(task, base, Renderer(base.tokenizer, task.recipe.prompt))
    ruled = Renderer(base.tokenizer, PromptSettings(instruction="rule")).suffix(task.policies[0])
    (told,) = of(compared[0], "prompt")
    head = base.model.get_output_embeddings()
    for place_of_row, row in enumerate(task.splits.test[:4]):
        prefix = bench.renderer.prefix(row.conversation).token_ids
        logits = base.model(torch.tensor([prefix + ruled.token_ids])).logits[0, -1, list(ruled.label_token_ids)]
        np.testing.assert_allclose(told["test"]["logits"][place_of_row], logits.numpy(), atol=1e-4)
        titled = bench.renderer.suffix(task.policies[0])
        (state,) = hidden_states(bench, task.policies[0], [row])
        expected = base.model(torch.tensor([prefix + titled.token_ids])).logits[0, -1]
        np.testing.assert_allclose(head(torch.tensor(state).float()).numpy(), expected.numpy(), atol=1e-4)


def test_the_probe_learns_from_training_rows_and_chooses_by_validation_rows_alone(place):
    base, task = load_base(BaseSettings(source=str(place / "base"))), read_task(recipe(place))
    turned = {"violation": "ok", "ok": "violation"}

    def fitted(part: str | None):
        """Strength and validation logits for the first policy, with the labels of one part turned around."""
        rows = {} if part is None else {part: tuple(
            replace(row, labels={name: turned[label] for name, label in row.labels.items()})
            for row in getattr(task.splits, part)
        )}  # fmt: skip
        other = replace(task, policies=task.policies[:1], splits=replace(task.splits, **rows))
        bench = Workbench(other, base, Renderer(base.tokenizer, task.recipe.prompt))
        found = fit_and_score(bench, MethodRun("probe"), other.policies[0])
        return found.facts["strength"], found.validation.logits_NL.tolist()

    told = fitted(None)
    assert fitted("test") == told
    assert told[0] > min(STRENGTHS) == fitted("validation")[0]
    assert fitted("train")[1] != told[1]


def test_an_adapter_without_the_doubtful_rows_stands_next_to_the_plain_one(place):
    rows = [json.loads(line) for line in (place / "train.jsonl").read_text().splitlines()]
    for number in (10, 21):
        rows[number]["labels"]["red"] = "ok" if rows[number]["labels"]["red"] == "violation" else "violation"
    (place / "turned.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ("policies=[red]", f"data.train={place / 'turned.jsonl'}", "compare.arms=[alora,alora_cleaned]",
            "compare.seeds=[0]", "compare.ranks=[2]", "training.max_steps=2")  # fmt: skip
    assert main(["compare", *overrides(place, place / "cleaned", *more)]) == 0
    found = json.loads((place / "cleaned/compare.json").read_text())
    trained = {item["arm"]: item["facts"]["training_rows"] for item in found["scores"]}
    assert trained == {"alora": 40, "alora_cleaned": 38}
    assert (found["gaps"][0]["first"], found["gaps"][0]["second"]) == (["alora", 2], ["alora_cleaned", 2])
    assert "doubtful rows left out" in (place / "cleaned/compare.md").read_text()
