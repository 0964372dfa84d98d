"""The model card: what the adapter decides, how well, on which base, and how to ask it.

Everything in it comes from the manifest, which holds no path of the machine that made it. Texts of the user's (the
policy's title and rule) are quoted, so that they cannot become front matter or markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from alora.adapter.folder import AdapterSpec
from alora.bundle.manifest import Manifest
from alora.evaluation.doubts import doubts
from alora.evaluation.records import Evaluation
from alora.evaluation.report import describe_operating_point, figure_rows

_HUB_METRICS = {"accuracy": "accuracy", "f1": "f1", "precision": "precision", "recall": "recall", "auroc": "roc_auc"}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def model_card(manifest: Manifest, spec: AdapterSpec) -> str:
    """The text of ``README.md``."""
    sections = [
        _front_matter(manifest),
        _introduction(manifest),
        _policy(manifest),
        _use(manifest),
        _data(manifest),
        _figures(manifest),
        _training(manifest, spec),
        _serving(manifest),
        _identity(manifest),
        _LIMITS,
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(manifest: Manifest) -> str:
    kind = "activated-lora" if manifest.activated else "lora"
    lines = ["library_name: peft", "pipeline_tag: text-classification"]
    if not manifest.base.local and _HUB_ID.fullmatch(manifest.base.source):
        lines += [f"base_model: {manifest.base.source}", "base_model_relation: adapter"]
    if manifest.card.license:
        lines.append(f"license: {json.dumps(manifest.card.license)}")
    if manifest.card.languages:
        lines += ["language:", *(f"- {json.dumps(language)}" for language in manifest.card.languages)]
    lines += ["tags:", *(f"- {tag}" for tag in ("alora", "peft", kind, "guardrail"))]
    return "\n".join(["---", *lines, *_model_index(manifest), "---"])


def _model_index(manifest: Manifest) -> list[str]:
    """The figures in the hub's form, unless the operating point or the base has changed since."""
    if not manifest.evaluations or _moved(manifest):
        return []
    first = manifest.evaluations[0]
    values = {name: first.metrics.value(figure) for figure, name in _HUB_METRICS.items()}
    metrics = [{"type": name, "value": round(value, 4)} for name, value in values.items() if value is not None]
    result = {
        "task": {"type": "text-classification"},
        "dataset": {"type": "private", "name": f"{first.split} rows", "split": first.split},
        "metrics": metrics,
    }
    return [
        "metrics:",
        *(f"- {metric['type']}" for metric in metrics),
        f"model-index: {json.dumps([{'name': manifest.policy.id, 'results': [result]}])}",  # JSON is YAML
    ]


def _introduction(manifest: Manifest) -> str:
    heading = f"# {_inline(manifest.policy.title)}"
    if manifest.activated:
        return (
            f"{heading}\n\nAn **activated LoRA** (aLoRA) adapter that answers one guardrail policy. It touches only "
            "the tokens from its invocation on, so the conversation before it keeps the base model's KV cache, bit for "
            "bit, and any number of such policies share one pass over it."
        )
    return (
        f"{heading}\n\nA **standard LoRA** adapter that answers one guardrail policy. It changes the base model from "
        "token 0 on, so it shares no KV cache with other policies; it serves as a baseline."
    )


def _policy(manifest: Manifest) -> str:
    policy = manifest.policy
    rule = "\n".join(f"> {_inline(line)}" for line in policy.rule.splitlines() or [""])
    labels = _table(
        ("label", "answer word", "token id"),
        [
            [_code(label), _code(answer), str(token)]
            for label, answer, token in zip(policy.labels, policy.answers, manifest.suffix.label_token_ids, strict=True)
        ],
    )
    return (
        f"## Policy\n\nId {_code(policy.id)}.\n\n{rule}\n\n{labels}\n\nThe positive label is {_code(policy.positive)}; "
        "a verdict gives its probability."
    )


def _use(manifest: Manifest) -> str:
    taken = manifest.prompt.truncation
    longer = "are scored in windows, and the highest counts" if taken == "windows" else f"lose their {taken}"
    return (
        "## Intended use\n\nTo flag conversations for review or to gate an assistant's answer, as one signal among "
        f"others. It judges this policy only, on the base below, with the `{manifest.prompt.layout}` prompt layout and "
        f"at most {manifest.prompt.max_prefix_tokens} tokens of conversation (longer ones {longer}). It was not "
        "made for decisions about people without a human in the loop."
    )


def _data(manifest: Manifest) -> str:
    if not manifest.data:
        return "## Data\n\nThe numbers of rows were not recorded."
    rows = [
        [split, str(sum(counts.values())), ", ".join(f"{_code(label)} {count}" for label, count in counts.items())]
        for split, counts in manifest.data.items()
    ]
    return "## Data\n\nLabelled conversations; the rows themselves are not part of this bundle.\n\n" + _table(
        ("split", "rows", "labels"), rows
    )


def _figures(manifest: Manifest) -> str:
    text = f"## Figures\n\nOperating point: {describe_operating_point(manifest.operating_point)}."
    if not manifest.evaluations:
        return f"{text}\n\nIt was not evaluated on held-out rows."
    first = manifest.evaluations[0]
    rows = (
        f"On {first.metrics.rows} {_inline(first.split)} rows, {first.metrics.positives} of them positive, "
        f"{first.truncated} truncated; with 95 % bootstrap intervals, which say nothing where a figure is 0 or 1."
    )
    if first.split == "validation":
        rows += " Training stopped by these rows and the threshold was fitted on them, so expect less of others."
    warnings = [f"> **{finding.code}**: {_inline(finding.problem)}" for finding in doubts(manifest.evaluations)]
    parts = [text, *warnings, f"{rows}{_moved(manifest)}", _comparison(manifest.evaluations), _by_label(first)]
    return "\n\n".join(part for part in parts if part)


def _by_label(evaluation: Evaluation) -> str:
    """What the verdict is for rows of each label, and each label's figures."""
    found = evaluation.by_label
    if not found:
        return ""
    rows = [
        [
            _code(item.label),
            *map(str, evaluation.confusion[place]),
            *(f"{value:.3f}" for value in (item.precision, item.recall, item.f1)),
            str(item.support),
            *([f"P ≥ {evaluation.rules[item.label]:.4f}"] if item.label in evaluation.rules else []),
        ]
        for place, item in enumerate(found)
    ]
    said = [f"says {_code(item.label)}" for item in found]
    headings = ("label of the row", *said, "precision", "recall", "F1", "rows")
    rule = (
        "A label's own rule is a threshold on its probability alone, fitted on validation rows like the verdict's."
        if evaluation.rules
        else ""
    )
    table = _table((*headings, *(["its own rule"] if evaluation.rules else [])), rows)
    return f"{table}\n\nMacro F1 {evaluation.macro_f1:.3f}. {rule}".rstrip()


def _training(manifest: Manifest, spec: AdapterSpec) -> str:
    shape = {"rank": str(spec.rank), "alpha": f"{spec.alpha:g}", "targets": ", ".join(spec.targets)}
    facts = [[name, _code(value)] for name, value in {**shape, **manifest.card.training}.items()]
    return f"## Training\n\n{_table(('setting', 'value'), facts)}"


def _moved(manifest: Manifest) -> str:
    """A remark for a bundle that was moved or fitted again: its figures were measured before."""
    remark, moved = "", manifest.moved
    if manifest.operating_point.dtype is not None:
        remark = (
            " They were measured before the operating point was fitted again, at the threshold and on the base of then."
        )
    if moved is not None:
        far = moved.largest_difference
        remark += (
            f" The bundle was moved from the base in quantization {_code(moved.quantization)} ({moved.dtype}): "
            f"{moved.same_verdict} of {moved.rows} golden rows kept their verdict, and log-probabilities moved by up "
            f"to {'no finite number' if far is None else f'{far:.2g}'}."
        )
    return remark


def _comparison(evaluations: Sequence[Evaluation]) -> str:
    """One column per method, all on the same rows."""
    columns = [figure_rows(evaluation.metrics) for evaluation in evaluations]
    names = [name for name, _ in columns[0]]
    cells = [[name, *(column[i][1] for column in columns)] for i, name in enumerate(names)]
    return _table(("figure", *(_code(evaluation.method) for evaluation in evaluations)), cells)


def _serving(manifest: Manifest) -> str:
    fingerprint = manifest.base.fingerprint
    name = manifest.base.source
    origin = f"a local folder named {_code(name)}" if manifest.base.local else _code(name)
    if manifest.base.revision:
        origin += f" at revision {_code(manifest.base.revision)}"
    override = " base.source=FOLDER_OF_THE_BASE" if manifest.base.local else ""
    keyword = ', base="FOLDER_OF_THE_BASE"' if manifest.base.local else ""
    digests = _table(
        ("part of the base", "sha256"),
        [[part, _code(getattr(fingerprint, part))] for part in ("weights", "tokenizer", "template")],
    )
    return (
        f"## How to use it\n\nBase: {origin}, quantization {_code(fingerprint.quantized_as)}; threshold fitted in "
        f"{manifest.base.dtype}. alora refuses to load the adapter on any other base, tokenizer or chat template.\n\n"
        f"{digests}\n\n```console\n$ pip install alora-toolkit\n"
        f"$ alora score artifact=THIS_FOLDER conversation.json{override}\n```\n\n"
        "From Python, by this folder or by `user/repository` on the hub:\n\n```python\nimport alora\n\n"
        f'with alora.load("THIS_FOLDER"{keyword}) as guard:\n'
        '    messages = [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]\n'
        f"    verdict = guard.score(messages)[{json.dumps(manifest.policy.id)}]\n"
        "    print(verdict.label, verdict.probability, verdict.violated)\n```\n\n"
        f"As a server, by vLLM or (`serving.scorer=packed`) without it:\n\n```console\n"
        f"$ alora serve artifact=THIS_FOLDER{override}\n"
        "$ curl -s http://127.0.0.1:8000/v1/guard -H 'Content-Type: application/json' \\\n"
        """    -d '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'\n"""
        "```\n\n"
        "The folder is a plain PEFT adapter, so `PeftModel.from_pretrained` loads it as it is. vLLM serves it with "
        "alora's plugin installed; without the plugin it would be refused, or run as a plain LoRA from token 0. Keep "
        "`alora_invocation_tokens` in `adapter_config.json`: some tools delete it, and the adapter is then silently "
        "wrong."
    )


def _identity(manifest: Manifest) -> str:
    facts = f"Adapter digest {_code(manifest.adapter_digest)}."
    certificate = manifest.certificate
    if certificate is None:
        return f"## KV identity\n\nNot certified: a standard LoRA changes the KV cache from token 0 on.\n\n{facts}"
    outcome = "passed" if certificate.passed else "FAILED"
    return (
        f"## KV identity\n\nCertificate of {certificate.created}: **{outcome}** in {', '.join(certificate.dtypes)}. "
        "For the same call, every layer's keys and values before the activation equal the base's as integers; the full "
        f"record is in `identity.json`.\n\n{facts}"
    )


_LIMITS = (
    "## Limits\n\nThe figures hold for rows like those above; other domains, languages and lengths need their own "
    "evaluation. The threshold belongs to the base, precision and engine it was fitted on: fit it again when one of "
    "them changes. A conversation may be written to mislead the classifier. Probabilities are calibrated on the "
    "validation rows' share of positives."
)


def _table(headings: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _inline(text: str) -> str:
    """User text on one line, with what Markdown and HTML would act on disarmed."""
    text = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|#!~])", r"\\\1", text)


def _code(text: str) -> str:
    """User text as a code span; the JSON form where a code span could not hold it."""
    if re.search(r"[`|\s]", text) or not text:
        return "`" + json.dumps(text).replace("`", "\\u0060").replace("|", "\\u007c") + "`"
    return f"`{text}`"
