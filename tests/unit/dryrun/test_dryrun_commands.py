"""Known command lines: what they say, and how a plan is put into them."""

import shlex
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.dryrun.commands import options_of, set_option, understand
from autotune.dryrun.interpreter import find_interpreter
from autotune.errors import ConfigError
from autotune.ladder.plan import Plan

KOHYA = (
    "accelerate launch train_network.py --pretrained_model_name_or_path=m.safetensors --train_batch_size 4 "
    "--resolution=512,768 --network_dim 32 --network_alpha 16 --gradient_accumulation_steps 2 --cache_latents"
)
DIFFUSERS = (
    "python train_text_to_image_lora.py --resolution 512 --train_batch_size=6 --rank 8 --mixed_precision fp16"
)


def plan_of(known: object, **changes: object) -> Plan:
    plan = known.recipe.plan  # type: ignore[attr-defined]
    for knob, value in changes.items():
        plan = plan.replace(knob, value)
    return plan


def test_kohyas_options_are_the_recipe() -> None:
    recipe = understand(shlex.split(KOHYA)).recipe
    assert recipe.plan.to_json() == {
        "batch_size": 4, "resolution": [[512, 768]], "gradient_checkpointing": False, "network_dim": 32,
    }  # fmt: skip
    assert recipe.effective_batch == 8


def test_diffusers_defaults_fill_what_is_not_said() -> None:
    recipe = understand(shlex.split("python train_dreambooth_lora_sdxl.py --gradient_checkpointing")).recipe
    assert recipe.plan.to_json() == {
        "batch_size": 4, "resolution": [[512, 512]], "gradient_checkpointing": True, "network_dim": 4,
    }  # fmt: skip


def test_a_plan_changes_its_own_options_and_keeps_the_effective_batch_and_the_scale(tmp_path: Path) -> None:
    known = understand(shlex.split(KOHYA))
    plan = plan_of(known, batch_size=2, gradient_checkpointing=True, network_dim=16)
    assert shlex.join(known.for_plan(plan, tmp_path)) == (
        "accelerate launch train_network.py --pretrained_model_name_or_path=m.safetensors --train_batch_size 2 "
        "--resolution=512,768 --network_dim 16 --network_alpha 8 --gradient_accumulation_steps 4 --cache_latents "
        "--gradient_checkpointing"
    )


def test_the_recipe_itself_changes_nothing(tmp_path: Path) -> None:
    for text in (KOHYA, DIFFUSERS):
        known = understand(shlex.split(text))
        assert known.for_plan(known.recipe.plan, tmp_path) == tuple(shlex.split(text))


def test_a_square_stays_one_number(tmp_path: Path) -> None:
    known = understand(shlex.split(DIFFUSERS))
    changed = known.for_plan(plan_of(known, resolution=((448, 448),)), tmp_path)
    assert changed[changed.index("--resolution") + 1] == "448"


def test_options_win_over_kohyas_config_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[a]\ntrain_batch_size = 3\nnetwork_dim = 64\n", "utf-8")
    command = ["python", "train_network.py", "--config_file", str(tmp_path / "c"), "--network_dim", "8"]
    plan = understand(command).recipe.plan
    assert (plan.batch_size, plan.network_dim) == (3, 8)


def test_a_dataset_file_is_copied_changed_and_never_touched(tmp_path: Path) -> None:
    text = "[general]\nresolution = 512\n[[datasets]]\nbatch_size = 4 # theirs\n"
    (tmp_path / "d.toml").write_text(text, "utf-8")
    known = understand(["python", "train_network.py", f"--dataset_config={tmp_path / 'd.toml'}"])
    assert known.recipe.plan.batch_size == 4
    (tmp_path / "copies").mkdir()
    command = known.for_plan(plan_of(known, batch_size=2), tmp_path / "copies")
    copy = Path(command[command.index("--dataset_config") + 1])
    assert "batch_size = 2" in copy.read_text("utf-8")
    assert (tmp_path / "d.toml").read_text("utf-8") == text


def test_smaller_sets_of_a_dataset_file_are_never_made_larger(tmp_path: Path) -> None:
    sets = "[[datasets]]\nbatch_size = 8\nresolution = 768\n[[datasets]]\nbatch_size = 1\nresolution = 256\n"
    (tmp_path / "d.toml").write_text(sets, "utf-8")
    known = understand(["python", "train_network.py", "--dataset_config", str(tmp_path / "d.toml")])
    (tmp_path / "copies").mkdir()
    plan = plan_of(known, batch_size=4, resolution=((704, 704),))
    said = options_of(known.for_plan(plan, tmp_path / "copies"))
    changed = tomllib.loads(Path(said["dataset_config"]).read_text("utf-8"))["datasets"]
    assert [one["batch_size"] for one in changed] == [4, 1]
    assert [one["resolution"] for one in changed] == [[704, 704], [256, 256]]


def test_a_dry_run_of_a_rung_leaves_nothing_for_the_real_run_to_find(tmp_path: Path) -> None:
    text = (
        "max_train_epochs = 10\n[data]\ncache_latents_to_disk = true\nnetwork_dim = 8\n"
        "gradient_accumulation_steps = 16\n"
    )
    (tmp_path / "c.toml").write_text(text, "utf-8")
    config = f"--config_file={tmp_path / 'c.toml'}"
    command = ["python", "train_network.py", config, "--output_dir", "mine", "--max_train_epochs", "3"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    short = understand(command).short(command, scratch)
    said = options_of(short)
    assert (said["output_dir"], said["max_train_steps"]) == (str(scratch / "output"), "3")
    assert "max_train_epochs" not in said
    assert said["cache_latents"] is True
    assert said["gradient_accumulation_steps"] == "2"
    assert tomllib.loads(Path(said["config_file"]).read_text("utf-8")) == {
        "data": {"network_dim": 8, "gradient_accumulation_steps": 16}
    }
    assert (tmp_path / "c.toml").read_text("utf-8") == text


def test_a_cache_on_the_disk_is_one_in_memory_in_a_dry_run_of_a_rung(tmp_path: Path) -> None:
    command = shlex.split("python train_network.py --cache_latents --cache_latents_to_disk --seed 1")
    short = understand(command).short(command, tmp_path)
    assert "--cache_latents_to_disk" not in short
    assert "--cache_latents" in short


def test_defaults_are_the_script_s_own(tmp_path: Path) -> None:
    script = tmp_path / "train_dreambooth_lora_flux.py"
    script.write_text(
        'p.add_argument("--rank", type=int, default=4)\np.add_argument("--lora_alpha", default=4)\n'
        'p.add_argument("--resolution", default=1024)\np.add_argument("--train_batch_size", default=16)\n',
        "utf-8",
    )
    known = understand(["python", str(script), "--rank", "16"])
    plan = known.recipe.plan
    assert (plan.batch_size, plan.resolutions, plan.network_dim) == (16, ((1024, 1024),), 16)
    assert known.recipe.floors["resolution"] == 512
    said = options_of(known.for_plan(plan_of(known, network_dim=8), tmp_path))
    assert (said["rank"], said["lora_alpha"]) == ("8", "2")


@given(st.lists(st.sampled_from(["--a", "--a=1", "--b", "x", "--rank", "7"]), max_size=8))
def test_setting_an_option_leaves_it_once_and_last_wins_nothing(words: list[str]) -> None:
    changed = set_option(["python", "s.py", *words], "rank", "3")
    assert changed.count("--rank") == 1
    assert changed[changed.index("--rank") + 1] == "3"
    assert changed[:2] == ["python", "s.py"]


@pytest.mark.parametrize("command", [["python", "mine.py"], ["sh", "run.sh"], ["python"]])
def test_an_unknown_command_line_is_refused_by_name(command: list[str]) -> None:
    with pytest.raises(ConfigError, match="sd-scripts and diffusers"):
        understand(command)


def test_a_console_script_runs_on_the_python_in_its_first_line(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("", "utf-8")
    script = tmp_path / "accelerate"
    script.write_text(f"#!{python}\nimport sys\n", "utf-8")
    for file in (python, script):
        file.chmod(0o755)
    assert find_interpreter([str(script)]) == str(python)
    assert find_interpreter([str(python), "x.py"]) == str(python)


def test_a_program_that_is_not_there_is_said_so() -> None:
    with pytest.raises(ConfigError, match="not found"):
        find_interpreter(["no-such-program-anywhere"])
