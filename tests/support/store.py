"""A process group's store in memory, and a clock that tests move."""

from training_profiler.model.ranks import RankId
from training_profiler.ranks.identity import Rank


class FakeServer:
    """The content of one store, shared by its clients."""

    def __init__(self):
        self.values = {}
        self.is_up = True
        self.calls = []


class FakeStore:
    """A client like c10d's. A missing key fails the test because c10d would wait for it."""

    def __init__(self, server):
        self.server = server

    def clone(self):
        return FakeStore(self.server)

    def set_timeout(self, timeout):
        self.timeout = timeout

    def _call(self, name):
        self.server.calls.append(name)
        if not self.server.is_up:
            raise RuntimeError("Broken pipe")

    def set(self, key, value):
        self._call("set")
        self.server.values[key] = value

    def compare_set(self, key, expected, desired):
        self._call("compare_set")
        assert expected == desired == ""
        return self.server.values.setdefault(key, b"")

    def check(self, keys):
        self._call("check")
        return all(key in self.server.values for key in keys)

    def get(self, key):
        self._call("get")
        return self.server.values[key]

    def multi_get(self, keys):
        self._call("multi_get")
        return [self.server.values[key] for key in keys]


def rank_of(rank, world_size, host="node0", attempt=0, has_group=True):
    made = Rank(RankId(rank, world_size, host, attempt=attempt))
    made.has_group = has_group
    return made
