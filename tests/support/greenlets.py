"""Threads as gevent and eventlet replace them."""

import threading

import pytest


def replace_threads(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Have ``threading`` start what looks like greenlets of a library, and starts nothing."""

    def start(*args: object, **words: object) -> int:
        raise AssertionError("a greenlet was started in place of a thread")

    start.__module__ = module
    for name in ("_start_new_thread", "_start_joinable_thread"):
        if hasattr(threading, name):
            monkeypatch.setattr(threading, name, start)
