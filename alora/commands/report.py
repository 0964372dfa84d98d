"""``alora report verdicts=DIR [data=LOG]``: what verdicts on a log say, as Markdown and as one page of HTML."""

from pathlib import Path

from alora.commands.output import say, table, write_text
from alora.config.schema import Recipe
from alora.errors import ConfigError
from alora.logs.report import EXCERPT, MARK, Summary, as_html, as_markdown, report
from alora.logs.rows import conversations_at
from alora.notes import note


def run(recipe: Recipe) -> int:
    """Write ``report.md`` and ``report.html`` into ``output=`` (the working folder)."""
    home = Path.cwd() if recipe.output is None else Path(recipe.output)
    files = home / "report.md", home / "report.html"
    for file in files:
        if (file.exists() or file.is_symlink()) and not _replaceable(file):
            raise ConfigError(f"{file} is there and is not a report of alora's; give another output=FOLDER")
    summary = Summary(Path(str(recipe.logs.verdicts)), recipe.logs.examples)
    texts = {}
    if recipe.conversation is not None:
        wanted = {example.row for example in summary.examples}
        for number, conversation in conversations_at(recipe.conversation, recipe.data, summary.job, wanted):
            texts[number] = conversation.excerpt(EXCERPT)
    found = report(summary, texts)
    for file, content in zip(files, (as_markdown(found), as_html(found)), strict=True):
        write_text(file, content)
    if summary.manifest.get("done") is None:
        note("alora score has not written all of these verdicts yet")
    rates = found[1]
    table(rates.headings, rates.rows)
    say(f"\nwritten to {files[0]} and {files[1].name}")
    return 0


def _replaceable(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as stream:
        return f"<!-- {MARK} -->" in stream.read(100)
