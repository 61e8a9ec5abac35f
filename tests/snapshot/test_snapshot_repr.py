from tests.support.recording import snapshot_of
from training_profiler.snapshot.snapshot import Snapshot


def test_text_of_a_snapshot_is_one_readable_line():
    snapshot = snapshot_of({"forward_pass": 0.5, "data_loading": 0.3, "a": 0.1, "b": 0.05}, steps=100)
    text = repr(snapshot)
    assert text.startswith("<Snapshot: 100 steps in 10")
    assert text.endswith(", forward_pass 50%, data_loading 30%, a 10%>")


def test_text_of_an_empty_snapshot():
    assert repr(Snapshot()).startswith("<Snapshot: 0 steps in 0")


def test_page_of_a_snapshot_escapes_names_of_sections():
    page = snapshot_of({"<script>": 0.5})._repr_html_()
    assert "<td>&lt;script&gt;</td><td>50.0%</td>" in page
    assert "<script>" not in page
