"""alora from Python: what load and train do, and that they are the command line's own way."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import alora
from alora.errors import BundleError, ConfigError, DataError
from tests.toy_recipe import toy_overrides
from tests.vllm import bundles as store

TALK = [{"role": "user", "content": "Take two pills a day."}]


@pytest.fixture(scope="module")
def battery():
    with alora.load(store.battery(), base=store.base_folder()) as loaded:
        yield loaded


def test_verdicts_by_policy_and_in_order(battery):
    verdicts = battery.score(TALK)
    assert [verdict.policy for verdict in verdicts] == list(battery.policies) == ["advice", "refunds"]
    assert verdicts["refunds"] is verdicts.verdicts[1]
    assert verdicts.violated == any(verdict.violated for verdict in verdicts)
    for verdict in verdicts:
        assert verdict.violated == (verdict.probability >= verdict.threshold) == (verdict.label == "violation")
    with pytest.raises(KeyError, match=r"nobody.*s.* among advice, refunds"):
        verdicts["nobody's"]


@pytest.mark.parametrize("given", [TALK, tuple(TALK), {"messages": TALK}, store.conversation(TALK[0]["content"])])
def test_a_conversation_in_any_form(battery, given):
    wanted = battery.score(TALK)
    assert [one.probability for one in battery.score(given)] == [one.probability for one in wanted]


def test_threads_that_share_it_get_the_verdicts_of_one(battery):
    talks = [[{"role": "user", "content": f"My order {number} is late."}] for number in range(12)]
    wanted = [[verdict.probability for verdict in battery.score(talk)] for talk in talks]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(battery.score, talks))
    assert [[verdict.probability for verdict in verdicts] for verdicts in found] == wanted


def test_a_closed_battery_answers_no_more():
    with alora.load(store.battery(), base=store.base_folder()) as loaded:
        wanted = [verdict.probability for verdict in loaded.score(TALK)]
        begun, later = loaded.score_many([TALK] * 400), loaded.score_many([TALK])
        next(begun)
    with pytest.raises(ConfigError):
        loaded.score(TALK)
    with pytest.raises(ConfigError):
        next(later)
    found = []
    with pytest.raises(ConfigError):
        found.extend([one.probability for one in verdicts] for verdicts in begun)
    assert found == [pytest.approx(wanted, abs=1e-6)] * len(found)


def test_a_bundle_alone_a_list_of_them_and_chosen_policies(battery):
    advice, refunds = (store.battery() / name for name in battery.policies)
    wanted = battery.score(TALK)
    for given, options in ((refunds, {}), (store.battery(), {"policies": ["refunds"]})):
        with alora.load(given, base=store.base_folder(), **options) as one:
            assert [verdict.probability for verdict in one.score(TALK)] == [
                pytest.approx(wanted["refunds"].probability, abs=1e-6)
            ]
    with alora.load([str(refunds), advice], base=str(store.base_folder())) as both:
        assert both.policies == ("refunds", "advice")
    with alora.load([refunds, advice], base=store.base_folder(), policies=["advice"]) as one:
        assert one.policies == ("advice",)
    with pytest.raises(ConfigError, match="has no policy advice; it has refunds"):
        alora.load(refunds, base=store.base_folder(), policies=["advice"])


def test_what_is_wrong_is_said(battery):
    with pytest.raises(DataError, match="row 2: "):
        list(battery.score_many([TALK, []]))
    with pytest.raises(DataError, match="the conversation is str"):
        battery.score("hello")
    with pytest.raises(ConfigError, match="errors is 'ignore'; give raise or return"):
        battery.score_many([TALK], errors="ignore")
    with pytest.raises(BundleError, match="is not a folder"):
        alora.load("nowhere")
    with pytest.raises(ConfigError, match=r"local folder.*name the folder"):
        alora.load(store.battery())


def test_train_is_the_command_line_and_what_it_returns_loads(tmp_path, capsys):
    overrides = dict(item.split("=", 1) for item in toy_overrides(tmp_path, tmp_path / "run"))
    rows = Path(overrides["data.train"])
    rows.write_text(rows.read_text().replace('"user"', '"human"', 1))
    lists = {name: [overrides.pop(name).strip("[]")] for name in ("identity.dtypes",)}
    run = alora.train(**overrides, **lists, training={"max_steps": 4})
    assert run == tmp_path / "run"
    assert "note: role 'human' is read as user\n" in capsys.readouterr().err
    with alora.load(run) as loaded:
        assert loaded.policies == ("toy",)
        loaded.score(TALK)


@pytest.mark.parametrize(
    "text",
    ["plain", "a b", "a,b", "x=y", "it's", 'say "no"', "back\\slash", "ends\\", "[a]", "{a: b}", "1", "null", "ü"],
)
def test_a_text_arrives_as_it_is(text, tmp_path, monkeypatch):
    arrived = []
    monkeypatch.setattr("alora.api.run", lambda recipe: arrived.append(recipe) or 0)
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    alora.train(policy={"title": text, "rule": text}, data={"train": rows}, training={"epochs": 0.5, "seed": 3})
    (recipe,) = arrived
    assert (recipe.policy.title, recipe.policy.rule, recipe.training.epochs) == (text, text, 0.5)
    assert (recipe.data.train, recipe.training.seed, recipe.base.source) == (str(rows), 3, "smollm2")


def test_a_recipe_and_a_group_by_name(tmp_path, monkeypatch):
    arrived = []
    monkeypatch.setattr("alora.api.run", lambda recipe: arrived.append(recipe) or 0)
    monkeypatch.chdir(tmp_path)
    assert alora.train("quickstart", base="qwen3_4b", name="other") == Path.cwd() / "runs" / "other"
    assert arrived[0].base.source == "Qwen/Qwen3-4B"
    with pytest.raises(ConfigError):
        alora.train("quickstart", trainin={"seed": 1})
