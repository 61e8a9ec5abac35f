"""Command line of the trainer; ``python -m examples.multi_loader [config.yaml]``."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.multi_loader.config import Config, ConfigError, read_config

DEFAULT = Path(__file__).with_name("config.yaml")
SWITCH = "RECTIFIED_FLOW_PROFILE"


def parse(words: Sequence[str] | None) -> Path:
    """Return the path of the file; exits with status 2 if they are invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.multi_loader",
        description="Train on several data loaders, interleaved as a YAML file says, and profile it "
        "(training.profile_training: false does not).",
    )
    parser.add_argument("config", type=Path, nargs="?", default=DEFAULT, help=f"the file; {DEFAULT.name} by default")
    path: Path = parser.parse_args(words).config
    return path


def switch(config: Config) -> None:
    """Switch the profiler as the file says; variables of the shell take precedence.

    The profiler reads its variable once at import, so this comes first.
    """
    if config.profile_training:
        os.environ.setdefault(SWITCH, "1")
    else:
        os.environ[SWITCH] = "0"


def main(words: Sequence[str] | None = None) -> int:
    """Train as the file says and return the exit status."""
    path = parse(words)
    try:
        config = read_config(path)
    except ConfigError as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 2
    switch(config)
    from examples.multi_loader.trainer import train  # not earlier: it imports the profiler

    train(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
