"""A run directory takes its own run and refuses everything else, naming the difference."""

from __future__ import annotations

import copy
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from graphmsda.domains import Unlabelled
from graphmsda.engine import folder
from graphmsda.engine.settings import Settings
from graphmsda.errors import UserError
from tests.conftest import feature_task


def config(**settings: Any) -> dict[str, Any]:
    task = feature_task()
    return folder.describe(task, Settings(device="cpu", **settings).resolved(task), {"task": "mine"})


def refusal(path: Path, given: dict[str, Any], *, extend: bool = False) -> str:
    before = sorted(os.listdir(path)) if path.is_dir() else None
    with pytest.raises(UserError) as caught:
        folder.open_folder(path, given, extend=extend)
    assert (sorted(os.listdir(path)) if path.is_dir() else None) == before
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder.write_config(tmp_path / "run", config(epochs=5))
    return tmp_path / "run"


def test_what_is_written_is_read_back(run: Path) -> None:
    assert folder.read_config(run) == config(epochs=5)
    text = (run / "config.yaml").read_text()
    assert "fingerprint" in text
    assert "- source-0" in text
    assert "!!" not in text  # plain YAML, no Python in it
    assert config()["data"]["samples"] == [20, 20, 20]
    assert config()["data"]["task"] == "mine"


def test_the_same_configuration_is_not_written_again(run: Path) -> None:
    before = (run / "config.yaml").stat()
    folder.write_config(run, config(epochs=5))
    assert (run / "config.yaml").stat().st_ino == before.st_ino
    folder.write_config(run, config(epochs=6))
    assert folder.read_config(run)["settings"]["epochs"] == 6


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere is not a run directory \(no such folder\)"):
        folder.read_config(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a run directory \(there is no config.yaml in it\)"):
        folder.read_config(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "- a list", "word", "data: {}\n", "settings: {}\n", "a: [1", "a: !!python/object:os.system {}", "\0"]
)
def test_configurations_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml is not a run's configuration") as caught:
        folder.read_config(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UserError, match="not a run's configuration"):
        folder.read_config(tmp_path)


@pytest.mark.parametrize("text", ["data: {}\nsettings: {}\n", "data: 1\nsettings: 2\n"])
def test_a_configuration_with_holes(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert str(tmp_path / "config.yaml") in refusal(tmp_path, config())


def test_new_and_empty_folders_are_taken(tmp_path: Path) -> None:
    folder.open_folder(tmp_path / "new", config(), extend=False)
    folder.open_folder(tmp_path, config(), extend=False)
    assert os.listdir(tmp_path) == []


def test_a_folder_in_which_training_never_began_is_taken(tmp_path: Path) -> None:
    """A run that failed before its first step, on missing weights say, leaves a folder that the next one may use."""
    with folder.locked(tmp_path / "run"):
        pass
    folder.open_folder(tmp_path / "run", config(), extend=False)
    assert os.listdir(tmp_path / "run") == [".lock"]


def test_the_same_run_is_taken_on_any_device(run: Path) -> None:
    before = (run / "config.yaml").read_bytes()
    folder.open_folder(run, config(epochs=5), extend=False)
    folder.open_folder(run, config(epochs=5), extend=True)
    folder.open_folder(run, config(epochs=5, checkpoint_seconds=1.0, devices=2, nodes=3), extend=False)
    elsewhere = copy.deepcopy(config(epochs=5))
    elsewhere["settings"]["device"] = "cuda"
    folder.open_folder(run, elsewhere, extend=False)
    assert (run / "config.yaml").read_bytes() == before


def test_a_run_of_an_earlier_version_goes_on(run: Path) -> None:
    """It knows nothing of settings that came later; their defaults are what it did."""
    before = folder.read_config(run)
    for name in ("augment", "resident"):
        del before["settings"][name]
    folder.write_config(run, before)
    folder.open_folder(run, config(epochs=5), extend=False)
    assert "augment was 'none' and is now 'weak'" in refusal(run, config(epochs=5, augment="weak"))


def test_a_hyperparameter_that_came_later_is_told(run: Path) -> None:
    """What its default does is not what the run did, or may not be."""
    before = folder.read_config(run)
    del before["settings"]["parameters"]["tau"]
    folder.write_config(run, before)
    told = refusal(run, config(epochs=5))
    assert "tau was unknown (another version of graphmsda) and is now 0.2" in told


def test_another_method_is_told_alone(run: Path) -> None:
    told = refusal(run, config(epochs=7, method="crf"))
    assert told.count(" is now ") == 1
    assert "None" not in told


def test_other_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "a file is there" in refusal(tmp_path / "file", config())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.jpg").write_text("")
    assert "not empty and holds no run" in refusal(tmp_path / "full", config())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lr": 0.5}, "lr was 0.003 and is now 0.5"),
        ({"seed": 3}, "seed was 0 and is now 3"),
        ({"batch_size": 8, "steps_per_epoch": 1}, "batch_size was 32 and is now 8"),
        ({"parameters": {"tau": 2.0}}, "tau was 0.2 and is now 2.0"),
        ({"method": "crf"}, "method was 'mrf' and is now 'crf'"),
        ({"preset": "paper"}, "likelihood was 'log' and is now 'verbatim'"),
    ],
)
@pytest.mark.parametrize("extend", [False, True])
def test_other_settings_are_refused_by_name(run: Path, change: dict[str, Any], told: str, extend: bool) -> None:
    text = refusal(run, config(epochs=5, **change), extend=extend)
    assert "holds a run with other settings" in text
    assert told in text
    assert "epochs" not in text


def test_other_data_is_refused(run: Path) -> None:
    task = feature_task()
    other = dataclasses.replace(task, target=Unlabelled("target", task.target.x + 1))
    given = folder.describe(other, Settings(device="cpu", epochs=5).resolved(other), {})
    assert "other data (source-0, source-1, target" in refusal(run, given)


def test_epochs_may_only_be_raised_and_only_when_asked(run: Path) -> None:
    text = refusal(run, config(epochs=9))
    assert "epochs 5, not 9" in text
    assert "--extend" in text
    assert "epochs 5, not 4; must be raised" in refusal(run, config(epochs=4), extend=True)
    folder.open_folder(run, config(epochs=9), extend=True)
    assert "lr was" in refusal(run, config(epochs=9, lr=0.1), extend=True)


HOLD = """
import sys
from pathlib import Path
from graphmsda.engine.folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process trains there now"), folder.locked(path):
            pass
        holder.kill()  # even so, the lock goes with the process
        holder.wait()
    with folder.locked(path), pytest.raises(UserError, match="another process"), folder.locked(path):
        pass
    with folder.locked(path):
        pass


def test_a_place_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"), folder.locked(tmp_path / "file" / "run"):
        pass


def test_metrics_are_appended_and_cut_back_on_resuming(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert folder.read_metrics(path) == []
    metrics = folder.Metrics(path, 0)
    rows = [{"step": step, "source": 1 / step} for step in (50, 100, 150)]
    for row in rows:
        metrics.write(row)
    assert folder.read_metrics(path) == rows
    folder.Metrics(path, 100).write({"step": 150, "source": 7.0})
    assert folder.read_metrics(path) == [*rows[:2], {"step": 150, "source": 7.0}]


@pytest.mark.parametrize("rest", ['{"step": 1', '{"step": 150, "sou', "{", '{"step": 150, "source": 0.1'])
def test_a_row_cut_short_is_left_out(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 50}\n{"step": 100}\n' + rest)
    assert folder.read_metrics(path) == [{"step": 50}, {"step": 100}]
    folder.Metrics(path, 100).write({"step": 150})
    assert path.read_text() == '{"step": 50}\n{"step": 100}\n{"step": 150}\n'


def test_names_survive_in_any_alphabet(tmp_path: Path) -> None:
    given = config()
    given["data"]["classes"] = ["größe", "猫", "yes", "1", "null", "a: b"]
    folder.write_config(tmp_path, given)
    assert folder.read_config(tmp_path) == given
    assert "猫" in (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load((tmp_path / "config.yaml").read_text(encoding="utf-8")) == given
