"""The runner of the documentation's commands finds the page that is wrong."""

import textwrap
from pathlib import Path

import pytest

from scripts.run_docs import PageError, alora_commands, main, read_blocks, run_page


def page(folder: Path, text: str) -> Path:
    file = folder / "page.md"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return file


def test_a_false_command_fails_with_its_place(tmp_path, capsys):
    file = page(
        tmp_path,
        """\
        # A page

        ```bash
        echo fine
        ```

        ```bash
        alora trian recipe=quickstart
        ```
        """,
    )
    assert main([str(file)]) == 1
    said = capsys.readouterr()
    assert "FAILED" in said.out
    assert "page.md:7: alora trian recipe=quickstart: exit code 2, the page says 0" in said.err
    assert "did you mean 'train'?" in said.err


def test_folder_variables_and_files_carry_over(tmp_path):
    file = page(
        tmp_path,
        """\
        ```bash
        mkdir rows && cd rows
        export WORD="two words"
        ```

        ```yaml title="nested/policy.yaml"
        id: toy
        ```

        ```bash
        test "$WORD" = "two words"
        test "$(cat nested/policy.yaml)" = "id: toy"
        test "$(basename "$PWD")" = rows
        ```

        ```python
        from pathlib import Path

        assert Path("nested/policy.yaml").read_text() == "id: toy\\n"
        ```
        """,
    )
    assert run_page(file) == []


def test_a_false_script_fails(tmp_path):
    with pytest.raises(PageError, match="AssertionError"):
        run_page(page(tmp_path, "```python\nassert 1 == 2\n```\n"))


def test_what_is_not_run_is_still_composed(tmp_path):
    text = "<!-- not run: needs a GPU -->\n```bash\nalora train recipe=quickstart training.leerning_rate=1\n```\n"
    with pytest.raises(PageError, match=r"did you mean 'training\.learning_rate'"):
        run_page(page(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```\nalora train\n```\n", "names no language"),
        ("```text\nalora train recipe=quickstart\n```\n", "looks like a command"),
        ("```bash\nalora train\n", "has no end"),
    ],
)
def test_no_command_hides(tmp_path, text, problem):
    with pytest.raises(PageError, match=problem):
        read_blocks(page(tmp_path, text))


def test_a_clone_holds_the_tracked_files_alone(tmp_path):
    file = page(
        tmp_path,
        "<!-- run in: a clone -->\n```bash\ntest -f Makefile && test ! -e .git && source .venv/bin/activate\n```\n",
    )
    assert run_page(file) == []


def test_commands_are_read_as_a_shell_reads_them():
    text = "alora train a=1 \\\n  'b=[x, y]'  # why\necho alora no\nalora --help\nalora train -m seed=0,1\n"
    assert alora_commands(text) == [["alora", "train", "a=1", "b=[x, y]"], ["alora", "train", "seed=0,1"]]
