"""What is read from pages, and that every command of every page is run or has a reason not to be."""

import subprocess
from pathlib import Path

import pytest

from tests.docs import cluster, offline, onthelab
from tests.docs.exempt import EXEMPT, Why
from tests.docs.reading import Command, DocumentError, commands, pages
from tests.docs.shell import Shell
from tests.docs.walk import Walk, lacking

EVERY = [command for page in pages() for command in commands(page)]


def test_every_page_with_commands_is_read_by_one_scene() -> None:
    scenes = [*offline.SCENES, *onthelab.SCENES, cluster.LAB_PAGE, cluster.INSTALL_PAGE]
    assert sorted(scenes) == sorted({command.page for command in EVERY})


def test_every_exemption_is_of_a_command_that_a_page_shows_and_every_reason_is_needed() -> None:
    shown = {(command.page, command.bare) for command in EVERY}
    assert set(EXEMPT) <= shown
    assert {exemption.why for exemption in EXEMPT.values()} == set(Why)


def test_nearly_every_command_is_run_as_it_stands() -> None:
    assert len(EXEMPT) <= 9, "a new exemption needs a reason and this number raised"


@pytest.mark.parametrize("command", EVERY, ids=str)
def test_a_command_is_whole(command: Command) -> None:
    done = subprocess.run(["bash", "-n"], input=command.text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), str(command)


def test_a_program_that_the_machine_has_not_got_is_known_before_a_page_is_read(tmp_path: Path) -> None:
    assert lacking("docs/how-to/attribute-gpus.md", {"PATH": str(tmp_path)}) == ["openssl"]
    assert lacking("docs/crash-matrix.md", {"PATH": str(tmp_path)}) == []


# ---- the reader itself


def test_a_terminal_is_split_at_its_prompts_and_continued_lines_are_one_command() -> None:
    text = "# Page\n\n- item\n\n  ```console\n  $ one \\\n      --more   # why\n  out\n\n  out 2\n  $ two\n  ```\n"
    one, two = commands("page.md", text)
    assert (one.line, one.bare, one.shown) == (6, "one \\\n    --more", ("out", "", "out 2"))
    assert (two.line, two.text, two.shown) == (11, "two", ())
    assert str(two) == "page.md:11: `two`"


def test_a_script_is_split_at_its_lines() -> None:
    text = "```sh\n# a remark\none \\\n  more\n\ntwo '#1'\n```\n"
    assert [(each.line, each.bare) for each in commands("page.md", text)] == [(3, "one \\\n  more"), (6, "two '#1'")]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\n```\ngpubank quota\n```\n", r"page.md:2: a block of language ''"),
        ("```bash\ngpubank quota\n```\n", r"page.md:1: a block of language 'bash'"),
        ("```text\n\ngpubank quota\n```\n", r"page.md:3: 'gpubank quota' is a command in a block of text"),
        ("```text\n  $ ls\n```\n", r"page.md:2: '\$ ls' is a command in a block of text"),
        ("```console\ngpubank quota\n```\n", r"page.md:2: a `console` block begins with a prompt"),
        ("```sh\none \\\n```\n", r"page.md:2: a backslash at the end of a block"),
        ("```console\n$ one \\\n```\n", r"page.md:2: a backslash at the end of a block"),
    ],
)
def test_a_block_that_is_not_what_it_says_is_refused_with_its_line(text: str, error: str) -> None:
    with pytest.raises(DocumentError, match=error):
        commands("page.md", text)


# ---- the terminal and the walk


@pytest.fixture
def shell(tmp_path: Path) -> "Shell":
    return Shell(tmp_path / "terminal", {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, tmp_path)


def test_commands_of_a_page_share_a_terminal(shell: Shell, tmp_path: Path) -> None:
    with shell:
        assert shell.run("export NAME=lin; cd /").code == 0
        assert shell.run('echo "$NAME $PWD"').out == "lin /\n"
        assert shell.run("false | true; exit_code() { return 3; }; exit_code").code == 3
        assert shell.run("sleep 1000 &").code == 0
        assert shell.run("kill %1").code == 0
        assert shell.run("read -r answer && echo $answer", typed="y\n").out == "y\n"


def test_a_command_that_hangs_is_told_and_ends_with_the_terminal(shell: Shell) -> None:
    with shell, pytest.raises(TimeoutError, match=r"`echo here; sleep 1000` has not ended after 0.2 s; it said: here"):
        shell.run("echo here; sleep 1000", timeout=0.2)


PAGE = "```console\n$ echo hello NAME\nhello NAME\n$ echo NAMES\nNAMES\n```\n\n```sh\nfalse\n```\n"


@pytest.fixture
def walk(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    (tmp_path / "page.md").write_text(PAGE)
    monkeypatch.setattr("tests.docs.reading.ROOT", tmp_path)
    return Walk("page.md", shell, {"NAME": "lin"})


async def test_a_walk_puts_names_in_place_and_holds_what_is_printed_against_what_is_shown(walk: Walk) -> None:
    with walk.shell:
        assert (await walk.on_to("echo NAMES")).out == "NAMES\n"
        with pytest.raises(AssertionError, match=r"page.md:9: `false` exits with 1"):
            await walk.to_the_end()


async def test_a_page_that_shows_something_else_than_is_printed_is_found(walk: Walk) -> None:
    walk.left[0] = Command("page.md", 2, "echo hello NAME", ("hallo NAME",))
    with walk.shell, pytest.raises(AssertionError, match=r"page.md:2: `echo hello NAME` prints something else"):
        await walk.to_the_end()


async def test_a_command_that_a_scene_waits_for_in_vain_is_told(walk: Walk) -> None:
    walk.left.pop()
    with walk.shell, pytest.raises(AssertionError, match="no command is left that begins with 'gpubank'"):
        await walk.on_to("gpubank")


def test_a_name_that_the_page_does_not_need_is_refused(walk: Walk) -> None:
    with walk.shell, pytest.raises(AssertionError, match="no command has the placeholder NODE"):
        Walk("page.md", walk.shell, {"NODE": "n1"})
