"""Notebooks: IPython's plain text of the values that people look at."""

from types import SimpleNamespace

from h5stream import H5StreamLoader
from h5stream.advice import Suggestion
from h5stream.monitor import SystemMonitor
from h5stream.training import track


def shown(value):
    texts = []
    value._repr_pretty_(SimpleNamespace(text=texts.append), cycle=False)  # IPython's printer, as far as it is used
    return "".join(texts)


def test_statistics_summaries_and_monitors_are_shown_as_text(sample):
    with H5StreamLoader(sample.path, 100, fields="x") as loader:
        epoch = track(loader, monitor=False)
        list(epoch)
        values = [loader.stats(), epoch.summary, Suggestion(title="a", answer="b", arithmetic=())]
    for value in values:
        assert shown(value) == str(value) != repr(value)
    with SystemMonitor(interval_s=0.1) as monitor:
        monitor.sample()
    assert "data wait" in shown(monitor.summary())
    assert "data wait" in shown(monitor)
