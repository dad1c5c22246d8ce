"""Time AdamW.step() alone, by how parameters are grouped and by torch's three implementations.

    python scripts/bench_optimizer.py --models nano small medium --repetitions 51 --device cpu

Real gradients of one picture are resident. The arms share weights and gradients, have states of their own, and take
turns in one process. Merged for-loop is what the reference package runs on a CPU.
"""

from itertools import accumulate, product
from typing import Any

import torch
from parts_of_a_run import Parts, build_parts, random_batch
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile
from turns import command_line, quartiles, ratios, show, synchronise, timed, write_report

from rfdetr_train.optim.param_groups import annotate, group

IMPLEMENTATIONS = {
    "fused": {"fused": True},
    "foreach": {"foreach": True, "fused": False},
    "for-loop": {"foreach": False, "fused": False},
}
GROUPINGS = {"merged": True, "one group per parameter": False}
COLUMNS = ("grouping", "step", "groups", "ms", "it / merged fused", "state MiB", "passing MiB", "operators", "kernels")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--models", nargs="+", default=["nano", "small", "medium"])
    parser.add_argument("--repetitions", type=int, default=51)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    rows = [row for model in options.models for row in measure(model, options.device, options.repetitions)]
    write_report(options, rows)


def measure(model: str, device: str, repetitions: int) -> list[dict[str, Any]]:
    """A row for each grouping and implementation."""
    parts = build_parts([f"model={model}", f"trainer.device={device}", "ema=none", "trainer.precision=fp32"])
    parts.step([random_batch(1, *parts.config.model.size_px)])
    arms = {arm: build_arm(parts, *arm) for arm in product(GROUPINGS, IMPLEMENTATIONS)}
    seconds: dict[tuple[str, str], list[float]] = {arm: [] for arm in arms}
    for repetition in range(repetitions + 1):
        for arm, optimizer in arms.items():
            taken_s = timed(optimizer.step)(None)["s"]
            if repetition:  # the first one makes the state
                seconds[arm].append(taken_s)
    fastest = seconds["merged", "fused"]
    rows = [
        {"model": model, "grouping": arm[0], "step": arm[1], "groups": len(optimizer.param_groups),
         "ms": quartiles(1000 * s for s in seconds[arm]), "it / merged fused": ratios(seconds[arm], fastest),
         **count_work(optimizer)}
        for arm, optimizer in arms.items()
    ]  # fmt: skip
    show(f"AdamW.step of {model} on {device}", COLUMNS, rows)
    return rows


def build_arm(parts: Parts, grouping: str, implementation: str) -> AdamW:
    annotated = annotate(parts.model.named_parameters(), parts.model.parameter_roles(), parts.config.optimizer)
    return AdamW(group(annotated, GROUPINGS[grouping]), **IMPLEMENTATIONS[implementation])


def count_work(optimizer: AdamW) -> dict[str, int]:
    """Operators that a step calls, kernels that it launches on an accelerator, memory of its state and beside it."""
    parameter = next(iter(optimizer.state))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if parameter.is_cuda else [])]
    with profile(activities=activities, profile_memory=True) as profiled:
        optimizer.step()
        synchronise()
    events = profiled.events()
    called = [e for e in events if e.name.startswith("aten::") and not (e.cpu_parent and "aten::" in e.cpu_parent.name)]
    kernels = [e for e in events if e.device_type != torch.autograd.DeviceType.CPU and not e.name.startswith("[")]
    allocations = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(allocations, key=lambda e: e.start_ns())]
    state = sum(t.nbytes for of_parameter in optimizer.state.values() for t in of_parameter.values())
    return {
        "operators": len(called),
        "kernels": len(kernels),
        "state MiB": round(state / 2**20),
        "passing MiB": round(max(accumulate(sizes, initial=0)) / 2**20),
    }


if __name__ == "__main__":
    main()
