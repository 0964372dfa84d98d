from tests.tiers import NIGHTLY, PARTS, ROOT, asked_by, is_nightly


def test_every_path_is_there():
    paths = [path.partition("::")[0] for part in PARTS.values() for path in (*part.tests, *part.cover)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_change_asks_for_what_covers_it_and_no_more():
    assert asked_by(["alora/activation.py"]) == list(PARTS["planted faults"].tests)
    assert asked_by(["alora/activation.pyi", "docs/faq.md"]) == []
    assert asked_by([NIGHTLY[0]]) == list(PARTS["planted faults"].tests)


def test_a_test_is_nightly_by_its_file_or_folder():
    assert is_nightly("tests/vllm/test_planted_faults.py::test_the_fault_is_caught[a]")
    assert is_nightly("tests/integration/distributed/test_a.py::test_b")
    assert not is_nightly("tests/integration/distributed_not/test_a.py::test_b")
