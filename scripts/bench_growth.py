"""How the time of a training step grows with its work: python scripts/bench_growth.py --axis batch.

    python scripts/bench_growth.py --axis layers --values 2 3 4 5 6
    python scripts/bench_growth.py --axis resolution --values 384 480 576 704 --precision bf16

The work is the FLOPs of matrix products and convolutions, as torch counts them. What grows slower than its work has a
fixed part that weighs less and less; what grows faster has left the caches, or does something that is not counted. All
sizes are timed in each round, one after the other.
"""

import argparse
from typing import Any

from parts_of_a_run import build_parts, random_batch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from turns import command_line, quartiles, show, timed, write_report

from rfdetr_train.allocator import keep_freed_memory

AXES = {"batch": [1, 2, 4, 8, 16], "layers": [2, 3, 4, 5, 6], "resolution": [384, 480, 576, 640, 704]}
KEYS = {"layers": "model.decoder_layers", "resolution": "model.resolution"}
COLUMNS = ("size", "s", "GFLOP", "GFLOP/s", "time / first", "work / first", "time / work")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--axis", choices=list(AXES), default="batch")
    parser.add_argument("--values", nargs="+", type=int, help="sizes; the first one is what the others are measured by")
    parser.add_argument("--batch", type=int, default=2, help="where another axis grows")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    keep_freed_memory()
    values = options.values or AXES[options.axis]
    work = {value: count_flops(value, options) for value in values}
    seconds: dict[int, list[float]] = {value: [] for value in values}
    for _ in range(options.rounds):
        for value in values:
            seconds[value].append(time_step(value, options))
    rows = growth(values, work, seconds)
    show(f"training step of {options.model}, {options.precision}", COLUMNS, rows)
    write_report(options, rows)


def growth(values: list[int], work: dict[int, float], seconds: dict[int, list[float]]) -> list[dict[str, Any]]:
    """Each size against the first: 1 in the last column is linear growth."""
    rows: list[dict[str, Any]] = []
    for value in values:
        row: dict[str, Any] = {"size": value, "s": quartiles(seconds[value]), "GFLOP": work[value] / 1e9}
        rows.append(row)
        row["GFLOP/s"] = row["GFLOP"] / row["s"][1]
        row["time / first"] = row["s"][1] / rows[0]["s"][1]
        row["work / first"] = row["GFLOP"] / rows[0]["GFLOP"]
        row["time / work"] = row["time / first"] / row["work / first"]
    return [{key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in row.items()} for row in rows]


def prepare(value: int, options: argparse.Namespace) -> Any:
    """A step at this size, ready to be taken."""
    overrides = [f"model={options.model}", f"trainer.precision={options.precision}", "ema=none"]
    if options.axis in KEYS:
        overrides.append(f"{KEYS[options.axis]}={value}")
    parts = build_parts(overrides)
    batch = random_batch(value if options.axis == "batch" else options.batch, *parts.config.model.size_px)
    return lambda: parts.step([batch])


def count_flops(value: int, options: argparse.Namespace) -> float:
    step = prepare(value, options)
    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
    ):  # of the fused kernel it knows nothing
        step()
    return counter.get_total_flops()


def time_step(value: int, options: argparse.Namespace) -> float:
    """The second step, since the first one makes the optimizer's state."""
    step = prepare(value, options)
    step()
    return timed(step)(None)["s"]


if __name__ == "__main__":
    main()
