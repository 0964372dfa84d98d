"""``alora report verdicts=DIR [data=LOG]``: what verdicts on a log say, as Markdown and as one page of HTML."""

from pathlib import Path

from alora.atomic import write_text
from alora.batch.log_rows import conversations_at
from alora.batch.verdict_report import EXCERPT, Summary, as_html, as_markdown, report
from alora.commands.output import report_file, say, table
from alora.config.schema import Recipe
from alora.text import note


def run(recipe: Recipe) -> int:
    """Write ``report.md`` and ``report.html`` into ``output=`` (the working folder)."""
    home = Path.cwd() if recipe.output is None else Path(recipe.output)
    files = report_file(home / "report.md"), report_file(home / "report.html")
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
