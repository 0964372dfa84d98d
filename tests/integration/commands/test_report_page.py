"""The page of ``alora report verdicts=``, in a real browser."""

import pytest

from alora.batch.verdict_report import Table, as_html
from tests.integration.guard.browser import CHROMIUM, browsing


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium")
def test_a_wide_table_scrolls_and_breaks_no_word(tmp_path):
    policies = [f"policy_number_{number}" for number in range(30)]
    rates = Table("Over time", "", ("time", "rows", *policies), [("2026-03-01", "36", *["19.44%"] * 30)])
    long = Table("Examples", "", ("policy", "id", "conversation"), [("a", "x" * 2000, "y" * 2000)])
    (tmp_path / "report.html").write_text(as_html([rates, long]))
    lines = """[...document.querySelectorAll('table')].map(table => [...table.querySelectorAll('td')].map(cell => {
        const text = document.createRange(); text.selectNodeContents(cell); return text.getClientRects().length }))"""
    with browsing(tmp_path / "profile") as page:
        page.open((tmp_path / "report.html").as_uri())
        of_rates, of_long = page.run(lines)
        assert set(of_rates) == {1}
        assert of_long[0] == 1 < min(of_long[1:])
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
