"""``alora generate policy.file=FILE judge.url=URL judge.model=NAME``: labelled rows from a policy's text alone."""

import shlex
from dataclasses import asdict, replace

from alora.commands.output import say, say_json, table
from alora.config.schema import Recipe
from alora.data.findings import ERROR
from alora.errors import CheckFailed, DataError
from alora.llm.generation import as_data, generate
from alora.text import note


def run(recipe: Recipe) -> int:
    """Generate, filter, report; exit code 1 when the rows cannot be trained on."""
    quality, folder, spent = generate(recipe)
    report, findings = quality.as_dict() | spent, quality.findings()
    if recipe.json:
        say_json(report | {"findings": [asdict(finding) for finding in findings]})
    else:
        counts = report["rows"]
        table(("split", *quality.policy.labels), [(split, *numbers.values()) for split, numbers in counts.items()])
        figures = {name: value for name, value in report.items() if not isinstance(value, dict)}
        say()
        table(("figure", "value"), list(figures.items()))
        say()
        for finding in findings:
            say(f"{finding.severity}  {finding}")
        say(f"\nrows and report: {folder}")
        if not any(finding.severity == ERROR for finding in findings):
            policy = shlex.quote(f"policy.file={recipe.policy.file or '...'}")
            say(f"train on them: alora train {policy} {as_data(folder)}")
    return int(any(finding.severity == ERROR or recipe.strict for finding in findings))


def generated(recipe: Recipe) -> Recipe:
    """``recipe`` with ``data.train=generate`` replaced by the files that were generated for it; validation rows that it
    names stay."""
    quality, folder, _ = generate(replace(recipe, output=None))
    findings = [item for item in quality.findings() if not (recipe.data.validation and item.code == "FEW_POSITIVES")]
    for finding in findings:
        note(f"{finding.severity}: {finding}")
    if any(finding.severity == ERROR for finding in findings):
        raise DataError(f"the generated rows cannot be trained on; see {folder / 'report.md'}")
    if findings and recipe.strict:
        raise CheckFailed(f"strict=true, and the generated rows have warnings; see {folder / 'report.md'}")
    validation = recipe.data.validation or str(folder / "validation.jsonl")
    data = replace(recipe.data, train=str(folder / "train.jsonl"), validation=validation)
    return replace(recipe, data=data)
