from training_profiler.statistics.differences import differing


def test_only_what_differs_is_listed_and_unknown_is_none():
    before = {"command": "python a.py", "versions": {"torch": "2.12"}, "settings": {"dir": "x", "log_every": 50}}
    after = {"command": "python a.py", "versions": {"torch": "2.13"}, "settings": {"dir": "y", "log_every": 50}}
    report = {"loaders": [{"name": "main", "phase": "train", "num_workers": 2}], "machine": {"cores": 2.0}}
    rows = differing((before, report), (after, {"loaders": [{"name": "main", "phase": "train", "num_workers": 0}]}))
    assert [tuple(row) for row in rows] == [
        ("versions.torch", "2.12", "2.13"),
        ("machine.cores", "2", None),
        ("loader main (train) num_workers", "2", "0"),
    ]


def test_hostile_texts_are_escaped():
    rows = differing(({"command": "python a.py\x1b[31m"}, {}), ({}, {}))
    assert rows[0].before == "python a.py\\x1b[31m"


def test_files_of_another_form_have_no_facts():
    assert differing(({"settings": [1], "attempts": "x", "git": None}, {"machine": 3, "loaders": None}), ({}, {})) == []
