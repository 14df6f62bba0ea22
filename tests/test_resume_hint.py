"""What the command says after a run whose ServerApp was killed."""

import pathlib

import pytest

from apps.cli import run
from apps.cli.main import main
from apps.cli.resume_hint import resume_hint
from flwr_vertical.server.journal import FILE_NAME

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_VERTICAL_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("flag", ["checkpoint", "resume"])
@pytest.mark.parametrize("form", ["one", "several", "file"])
def test_a_journal_that_is_there_is_named(home, flag, form):
    folder = home / "server" / "night"
    folder.mkdir(parents=True)
    (folder / FILE_NAME).touch()
    if form == "file":
        (home / "run.toml").write_text(f'run-name = "night"\n{flag} = true\n')
        options = [str(home / "run.toml")]
    elif form == "one":
        options = [f'run-name="night" {flag}=true']
    else:
        options = ['run-name="night"', f"{flag}=true vfem.max-iter=7"]
    hint = resume_hint(ROOT, options)
    assert str(folder / FILE_NAME) in hint
    assert "resume=true run-name='night'" in hint


def test_the_folder_is_that_of_the_run_config(home):
    folder = home / "own" / "night"
    folder.mkdir(parents=True)
    (folder / FILE_NAME).touch()
    options = [f'run-name="night" checkpoint=true output="{home / "own"}"']
    assert str(folder / FILE_NAME) in resume_hint(ROOT, options)


def test_without_one_here_it_says_where_to_look(home):
    hint = resume_hint(ROOT, ['run-name="night" checkpoint=true'])
    assert "the machine of the ServerApp holds" in hint
    assert "resume=true run-name='night'" in hint


@pytest.mark.parametrize("options", [[], ['run-name="night"'], ["checkpoint=false"]])
def test_runs_that_keep_nothing_get_no_hint(home, options):
    assert resume_hint(ROOT, options) == ""


def test_a_run_that_is_interrupted_is_stopped_and_can_go_on(home, monkeypatch, capsys):
    asked = []

    class Begun:
        """A run whose log ends as the key is pressed."""

        def __init__(self, command, **options):
            asked.append(command[1])
            self.stdout = self

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def __iter__(self):
            yield "Successfully started run 17\n"
            raise KeyboardInterrupt

    (home / "config.toml").write_text(
        '[superlink.our-federation]\naddress = "127.0.0.1:1"\ninsecure = true\n'
    )
    monkeypatch.setenv("FLWR_HOME", str(home))
    monkeypatch.setattr(run.subprocess, "Popen", Begun)
    monkeypatch.setattr(run.subprocess, "run", lambda command, **_: asked.append(command[1:3]))
    given = 'run-name="night" checkpoint=true parties="bank,court"'
    assert main(["run", str(ROOT), "our-federation", "--run-config", given]) == 130
    assert asked == ["run", ["stop", "17"]]
    said = capsys.readouterr().err
    assert said.startswith("interrupted; ")
    assert "resume=true run-name='night'" in said
