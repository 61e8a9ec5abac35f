import pytest

from training_profiler.storage.run_folder import masked

HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["--api-key", "X"], ["--api-key", "***"]),
        (["--api_key", "X"], ["--api_key", "***"]),
        (["--apiKey=X"], ["--apiKey=***"]),
        (["--token=X"], ["--token=***"]),
        (["--token", "X"], ["--token", "***"]),
        (["--hub-token", "X"], ["--hub-token", "***"]),
        (["--hftoken=X"], ["--hftoken=***"]),
        (["--use-auth-token", "X"], ["--use-auth-token", "***"]),
        (["--access-token-2", "X"], ["--access-token-2", "***"]),
        (["--password", "X"], ["--password", "***"]),
        (["--db-passwd=X"], ["--db-passwd=***"]),
        (["--secret", "X"], ["--secret", "***"]),
        (["-secret", "X"], ["-secret", "***"]),
        (["--client-secret-value=X"], ["--client-secret-value=***"]),
        (["--aws-access-key-id", "X"], ["--aws-access-key-id", "***"]),
        (["--credentials=X"], ["--credentials=***"]),
        (["--key", "X"], ["--key", "***"]),
        (["WANDB_API_KEY=X"], ["WANDB_API_KEY=***"]),
        (["HF_TOKEN=X"], ["HF_TOKEN=***"]),
        (["AZURE_STORAGE_KEY=X"], ["AZURE_STORAGE_KEY=***"]),
        (["+logger.wandb.api_key=X"], ["+logger.wandb.api_key=***"]),
        (["--token=a=b"], ["--token=***"]),
        (["--password", "-X"], ["--password", "***"]),
    ],
)
def test_values_with_secret_names_are_masked(command, shown):
    assert masked(command) == shown


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
    ],
)
def test_values_that_look_like_secrets_are_masked_anywhere(word, shown):
    assert "X" not in shown.replace("X-Api-Key", "")
    assert masked([word])[0].replace("*** ***", "***") == shown


@pytest.mark.parametrize(
    "command",
    [
        ["train.py"],
        ["-m", "package.train"],
        ["--lr", "1e-3"],
        ["--lr=1e-3"],
        ["--tokenizer", "path/to/tokenizer"],
        ["--tokenizer=gpt2"],
        ["model.tokenizer.name=gpt2"],
        ["--max-tokens", "512"],
        ["--max_new_tokens=512"],
        ["--tokens-per-batch", "4096"],
        ["--token-dropout", "0.1"],
        ["--token-dim=64"],
        ["--pad-token", "<pad>"],
        ["--eos_token=</s>"],
        ["--key-dim", "64"],
        ["--num-key-value-heads=8"],
        ["--sort-key", "length"],
        ["--image_key=jpg"],
        ["--author", "Ada"],
        ["--passes", "3"],
        ["--profile-forward-pass", "yes"],
        ["--keyframes=3"],
        ["--monkey", "see"],
        ["--data", "/home/ada/data/imagenet-2012/train-00001-of-01024.tar"],
        ["--out", "runs/20261121-142530/checkpoints"],
        ["--url=https://host/data?page=2"],
        ["--use-flash-attention-2-for-all-layers"],
        ["--run-name=exp_resnet50_imagenet_lr1e-3_bs256_warmup500"],
        ['{"pad_token": "x", "max_tokens": 5}'],
        ["optimizer.betas=[0.9,0.999]"],
    ],
)
def test_harmless_words_stay_readable(command):
    assert masked(command) == command


def test_a_flag_without_a_value_hides_no_option_after_it():
    assert masked(["--use-auth-token", "--lr", "1e-3"]) == ["--use-auth-token", "--lr", "1e-3"]


def test_an_empty_value_stays_empty():
    assert masked(["--token="]) == ["--token="]
