"""The report on generated rows."""

from alora.llm.quality import Quality, markdown
from alora.policy import Policy


def test_nothing_of_a_received_policy_becomes_markup():
    title, labels = "<script>alert(1)</script> [a](b)", ("<img src=x onerror=alert(2)>", "ok")
    policy = Policy("x", title, "No x.", labels, ("Yes", "No"))
    page = markdown(Quality(policy, 1, 1, 0, [], {}, {"train": [], "validation": []}, None, None, "model"), {})
    assert page.startswith(r"# Rows for &lt;script&gt;alert(1)&lt;/script&gt; \[a\](b)")
    assert "train: &lt;img src=x onerror=alert(2)&gt;: 0, ok: 0" in page
    assert "<script" not in page
    assert "<img" not in page
