""""""

import sys
from importlib import metadata

import pytest

from training_profiler.settings.settings import Settings
from training_profiler.storage import run_folder
from training_profiler.storage.run_folder import (
    describe_git,
    describe_process,
    earlier_run,
    make_run_folder,
    masked,
    program_in,
    typed_program,
    write_json,
    write_text,
)


@pytest.fixture(autouse=True)
def one_second(monkeypatch):
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "20261121-142530")


def test_a_second_run_in_the_same_second_gets_a_number(tmp_path):
    made = [make_run_folder(str(tmp_path)).name for _ in range(3)]
    assert made == ["20261121-142530", "20261121-142530-2", "20261121-142530-3"]


def test_a_run_folder_stays_where_it_is_when_the_script_changes_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_run_folder("runs") == tmp_path / "runs" / "20261121-142530"


def test_a_file_of_the_same_name_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(OSError, match="runs"):
        make_run_folder(str(tmp_path / "runs"))


def test_an_earlier_run_has_the_same_program_and_is_the_newest_of_them(tmp_path):
    commands = {"1": "python train.py", "2": "python train.py --lr 1", "3": "python other.py", "4": "python train.py"}
    for name, command in commands.items():
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "meta.json", {"command": command})
    (tmp_path / "5").mkdir()  # without a description
    assert [earlier_run(tmp_path / name) for name in "1345"] == [None, None, tmp_path / "2", None]


KERNEL = "python -m ipykernel_launcher -f kernel.json"


def test_the_program_of_a_command_can_be_typed_again():
    commands = (
        "python -u -W error a/train.py 'x y'",
        "python -m pkg.train --n 1",
        "python -c pass",
        "python",
        "'",
        KERNEL,
    )
    assert [(program_in(each), typed_program(each)) for each in commands] == [
        ("train.py", "a/train.py 'x y'"),
        ("pkg.train", "-m pkg.train --n 1"),
        *[(None, None)] * 4,
    ]


def test_the_command_line_is_described_without_secrets(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "train.py", "--token", "X", "--lr", "1e-3"])
    command = describe_process(Settings())["command"]
    assert command.split(" ", 1)[1] == "train.py --token '***' --lr 1e-3"


def test_a_process_that_multiprocessing_spawned_has_the_command_of_its_parent(monkeypatch):
    text = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "-c", text, "--multiprocessing-fork"])
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1e-3"])
    command = describe_process(Settings())["command"]
    assert command.split(" ", 1)[1] == "train.py --lr 1e-3"
    assert program_in(command) == "train.py"


def test_versions_are_those_of_the_installed_packages():
    versions = describe_process(Settings())["versions"]
    assert versions == {name: metadata.version(name) for name in ("training-profiler", "torch", "numpy")}


def test_outside_of_a_git_tree_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe_git(tmp_path / "train.py") is None


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe_git(__file__) is None


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(tmp_path):
    theirs, path = tmp_path / "theirs", tmp_path / "report.txt"
    theirs.write_text("theirs")
    path.symlink_to(theirs)
    path.with_name("report.txt.part").symlink_to(theirs)
    write_text(path, "ours")
    assert (theirs.read_text(), path.read_text(), path.is_symlink()) == ("theirs", "ours", False)


def test_json_is_written_in_one_piece(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"nan": float("nan")})
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text() == "old"


HEX = "0123456789abcdef0123456789abcdef01234567"


# Several commands a line; each secret is X.
OF_SECRETS = """
--api-key X | --api_key X | --apiKey=X | --token=X | --token X | --hub-token X | --hftoken=X | --use-auth-token X
--access-token-2 X | --password X | --db-passwd=X | --secret X | -secret X | --client-secret-value=X
--aws-access-key-id X | --credentials=X | --key X | WANDB_API_KEY=X | HF_TOKEN=X | AZURE_STORAGE_KEY=X
+logger.wandb.api_key=X | --pass X | DB_PASS=X | PGPASSWORD=X | MYSQL_PWD=X | AWS_SESSION_TOKEN=X
"""


def commands_in(table):
    return [command for line in table.strip().splitlines() for command in line.split(" | ")]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        *((command, command.replace("X", "***")) for command in commands_in(OF_SECRETS)),
        ("--token=a=b", "--token=***"),
        ("--password -X", "--password ***"),
        ("AWS_SECRET_ACCESS_KEY=X/X+X", "AWS_SECRET_ACCESS_KEY=***"),
        ("--sentry-dsn https://X@host/1", "--sentry-dsn ***"),
    ],
)
def test_values_with_secret_names_are_masked(command, shown):
    assert masked(command.split()) == shown.split()


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://user:pass@host/data", "https://***@host/data"),
        ("https://token@host/data", "https://***@host/data"),
        ("https://host/?token=X&page=2", "https://host/?token=***&page=2"),
        ("--url=https://host/?api_key=X", "--url=https://host/?api_key=***"),
        ("postgres://me:pw@db:5432/runs", "postgres://***@db:5432/runs"),
        ("hf_abcdefghijklmnop", "***"),
        ("sk-abcdefghijklmnop", "***"),
        ("--x=sk-proj-abcdefghijklmnop", "--x=***"),
        ("ghp_abcdefghijklmnop", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        ("eyJhbGciOi.eyJzdWIiOi.abc", "***"),
        (HEX, "***"),
        (f"--run={HEX}", "--run=***"),
        ("Authorization: Bearer X", "Authorization: ***"),
        ("X-Api-Key: X", "X-Api-Key: ***"),
        ('{"api_key": "X", "lr": 1}', '{"api_key": "***", "lr": 1}'),
        ("9f8a1b2c-3d4e-5f6a-7b8c-9d0e1f2a3b4c", "***"),
        ("postgresql+psycopg2://me:X%40X@db/runs", "postgresql+psycopg2://***@db/runs"),
        ("redis://:X@cache:6379/0", "redis://***@cache:6379/0"),
        ("https://x-access-token:X@github.com/o/r", "https://***@github.com/o/r"),
        ("https://h.blob.core.windows.net/c?sv=2026&sig=X%3D", "https://h.blob.core.windows.net/c?sv=2026&sig=***"),
        ("s3://b/k?X-Amz-Signature=X&page=2", "s3://b/k?X-Amz-Signature=***&page=2"),
        ("https://hooks.slack.com/services/T0/B0/X", "https://hooks.slack.com/services/***"),
        ("ASIAABCDEFGHIJKLMNOP", "***"),
        ("wJalrGUtnFEMI/K7MDENG/bPbRfiCYEDAMPLEKEY", "***"),
        ("sk_live_abcdefghijklmnop", "***"),
        ("SG.abcdefghijklmnop.abcdefghijklmnop", "***"),
        ('{"password": "X X", "lr": 1}', '{"password": "***", "lr": 1}'),
        ("{'db': {'token': 'X'}}", "{'db': {'token': '***'}}"),
        (r'{"env": "{\"api_key\": \"X X\"}"}', r'{"env": "{\"api_key\": \"***\"}"}'),
        ("os.environ['MY_TOKEN'] = 'X'; main()", "os.environ['MY_TOKEN'] = '***'; main()"),
        ("f(); login(token='X')", "f(); login(token='***')"),
        ("Authorization: token X", "Authorization: ***"),
        ("Cookie: session=X; other=X", "Cookie: ***"),
        ("trainer.logger={api_key:X,project:p}", "trainer.logger={api_key:***,project:p}"),
    ],
)
def test_values_that_look_like_secrets_are_masked_anywhere(word, shown):
    assert "X" not in shown.replace("X-Api-Key", "").replace("X-Amz", "")
    assert masked([word])[0].replace("*** ***", "***") == shown


HARMLESS = """
train.py | --token= | --use-auth-token --lr 1e-3 | -m package.train | --lr 1e-3 | --lr=1e-3
--tokenizer path/to/tokenizer | --tokenizer=gpt2 | model.tokenizer.name=gpt2 | --max-tokens 512
--max_new_tokens=512 | --tokens-per-batch 4096 | --token-dropout 0.1 | --token-dim=64 | --pad-token <pad>
--eos_token=</s> | --key-dim 64 | --num-key-value-heads=8 | --sort-key length | --image_key=jpg | --author Ada
--passes 3 | --profile-forward-pass yes | --keyframes=3 | --monkey see
--data /home/ada/data/imagenet-2012/train-00001-of-01024.tar | --out runs/20261121-142530/checkpoints
--url=https://host/data?page=2 | --use-flash-attention-2-for-all-layers
--run-name=exp_resnet50_imagenet_lr1e-3_bs256_warmup500 | optimizer.betas=[0.9,0.999]
--data datasets/Imagenet2012/train/Shard0001/x | data/Imagenet2012Train/Shard01/ResNet50x | --two-pass yes
git@github.com:owner/repository
"""


@pytest.mark.parametrize(
    "command",
    [
        *(command.split() for command in commands_in(HARMLESS)),
        ['{"pad_token": "x", "max_tokens": 5}'],
        ['{"model": {"name": "gpt 2", "layers": 3}}'],
        ["model.forward(x)['loss'] = 3"],
    ],
)
def test_harmless_words_stay_readable(command):
    assert masked(command) == command
