"""Curves: what is on the axes, and that no input of a real run breaks them."""

import math

import numpy as np
import pytest
from PIL import Image

from rfdetr_train.loggers import plots
from rfdetr_train.loggers.plots import Curve, downsampled, write_plots


@pytest.fixture
def figures(monkeypatch):
    """The saved figures by file name."""
    saved = {}
    original = plots.save_figure

    def save_figure(figure, path):
        saved[path.name] = figure
        original(figure, path)

    monkeypatch.setattr(plots, "save_figure", save_figure)
    return saved


def train_row(step, lr, loss=1.0):
    return {"split": "train", "step": step, "loss": loss, "loss_class": loss, "loss_box": loss / 2, "lr": lr}


def valid_row(step, weights, ap):
    return {"split": "valid", "step": step, "weights": weights, "AP": ap, "AP50": ap, "AP75": None, "APs": None}


def is_picture(path, least_colours=5):
    with Image.open(path) as image:
        return image.format == "PNG" and len(image.convert("RGB").getcolors(1 << 24)) >= least_colours


def legend_labels(figure):
    legend = figure.legends[0]
    return [text.get_text() for text in legend.get_texts()]


def test_three_pictures(tmp_path, figures):
    rows = [train_row(s, {"head": 1e-4, "encoder": 1e-5}, 10 / s) for s in range(1, 21)]
    rows += [valid_row(s, w, 0.01 * s) for s in (10, 20) for w in ("raw", "ema")]
    paths = write_plots(rows, tmp_path / "plots")
    assert [path.name for path in paths] == ["losses.png", "average_precision.png", "learning_rates.png"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(path.name for path in paths)
    assert all(is_picture(path) for path in paths)
    total, parts = figures["losses.png"].axes
    assert [len(axes.get_lines()) for axes in (total, parts)] == [1, 2]
    assert total.get_yscale() == "log"
    np.testing.assert_array_equal(total.get_lines()[0].get_ydata(), [10 / s for s in range(1, 21)])
    assert legend_labels(figures["average_precision.png"]) == [
        "AP (raw)",
        "AP50 (raw)",
        "AP (ema)",
        "AP50 (ema)",
        "best AP (raw) 0.2000",
    ]


def test_best_of_the_averaged_weights_is_marked(tmp_path, figures):
    rows = [valid_row(s, w, ap) for s, w, ap in ((1, "raw", 0.1), (1, "ema", 0.4), (2, "raw", 0.3), (2, "ema", 0.35))]
    write_plots(rows, tmp_path)
    star = figures["average_precision.png"].axes[0].get_lines()[-1]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([1.0], [0.4])


def layered_rates(factor):
    """28 groups of 16 rates: every encoder block has one group with decay and one without."""
    rates = {"projector+head": 1e-4, "decoder": 7e-5, "encoder.norm.no_decay": 7.35e-5, "encoder.embeddings": 3.2e-6}
    for i in range(12):
        rates[f"encoder.block{i}"] = rates[f"encoder.block{i}.no_decay"] = 7.35e-5 * 0.8 ** (13 - i)
    return {name: lr * factor for name, lr in rates.items()}


def test_learning_rates_of_28_groups(tmp_path, figures):
    write_plots([train_row(s, layered_rates(s / 4)) for s in (1, 2, 3, 4)], tmp_path)
    figure = figures["learning_rates.png"]
    lines = figure.axes[0].get_lines()
    peaks = [max(line.get_ydata()) for line in lines]
    assert len(lines) == 16
    assert peaks == sorted(peaks, reverse=True)
    assert len({tuple(line.get_color()) for line in lines}) == 16
    labels = legend_labels(figure)
    assert labels[0] == "1.00e-04  projector+head"
    assert "1.23e-05  encoder.block5, encoder.block5.no_decay" in labels
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1  # nothing of the legend is cut off
    assert 0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_one_group_per_parameter_keeps_a_readable_legend(tmp_path, figures):
    rates = {f"decoder.layers.{i}.cross_attention.offsets.weight": 1e-4 + i * 1e-7 for i in range(60)}
    rates |= {f"head.{i}": 1e-3 for i in range(300)}
    write_plots([train_row(s, rates) for s in (1, 2)], tmp_path)
    figure = figures["learning_rates.png"]
    assert len(figure.axes[0].get_lines()) == 61
    labels = legend_labels(figure)
    assert len(labels) == 28
    assert labels[0] == "1.00e-03  head.0 and 299 more"
    assert figure.legends[0].get_title().get_text() == "largest rate, groups (and 33 lower ones)"
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert 0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_group_that_joins_later_begins_later(tmp_path, figures):
    rows = [train_row(1, {"head": 1e-4}), train_row(2, {"head": 1e-4, "encoder": 1e-5})]
    write_plots(rows, tmp_path)
    late = figures["learning_rates.png"].axes[0].get_lines()[1]
    assert math.isnan(late.get_ydata()[0])
    assert late.get_ydata()[1] == 1e-5


def test_a_single_point_is_seen(tmp_path, figures):
    paths = write_plots([train_row(1, {"head": 1e-4}), valid_row(1, "raw", 0.1)], tmp_path)
    assert len(paths) == 3
    assert all(is_picture(path) for path in paths)
    for name in ("losses.png", "learning_rates.png", "average_precision.png"):
        axes = figures[name].axes[0]
        assert axes.get_lines()[0].get_marker() == "o"
        assert axes.get_xlim() == (0.0, 2.0)


def test_nothing_to_show_writes_nothing(tmp_path):
    assert write_plots([], tmp_path) == []
    empty = {"split": "train", "step": 1, "loss": None, "loss_box": None, "lr": {"head": None}}
    assert write_plots([empty, {"split": "train", "step": 2}, valid_row(2, "ema", None)], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_nulls_and_zeros_between_values(tmp_path, figures):
    rows = [train_row(1, {"head": 0.0}, 8.0), {"split": "train", "step": 2, "loss": None, "lr": None}]
    rows += [train_row(3, {"head": 1e-4}, 0.0), train_row(4, {"head": 1e-6}, 0.5)]
    assert [path.name for path in write_plots(rows, tmp_path)] == ["losses.png", "learning_rates.png"]
    assert list(figures["losses.png"].axes[0].get_lines()[0].get_xdata()) == [1, 3, 4]


def test_a_long_run_is_thinned(tmp_path, figures):
    rng = np.random.default_rng(0)
    losses = np.exp(rng.normal(size=100_000)).tolist()
    losses[54_321] = 1e6
    write_plots([train_row(s, {"head": 1e-4}, loss) for s, loss in enumerate(losses)], tmp_path)
    noisy, mean = figures["losses.png"].axes[0].get_lines()
    assert len(noisy.get_xdata()) <= 2000
    assert (54_321, 1e6) in set(zip(noisy.get_xdata(), noisy.get_ydata(), strict=True))
    assert np.median(mean.get_ydata()) == pytest.approx(math.exp(0.5), rel=0.05)  # the mean of a log-normal


def test_thinning_keeps_extremes_in_order():
    curve = Curve("x", np.arange(10_000.0), np.where(np.arange(10_000) == 4321, np.nan, np.sin(np.arange(10_000))))
    thin = downsampled(curve, 100)
    assert len(thin.steps) <= 100
    assert (np.diff(thin.steps) > 0).all()
    assert (thin.values.max(), thin.values.min()) == (np.nanmax(curve.values), np.nanmin(curve.values))
    assert downsampled(thin, 100) is thin


def test_pyplot_is_not_touched(tmp_path):
    import matplotlib.pyplot as plt

    write_plots([train_row(1, {"head": 1e-4})], tmp_path)
    assert plt.get_fignums() == []
