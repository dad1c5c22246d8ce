"""Time and peak memory of this package beside the reference: python scripts/bench_reference.py --reference-python PATH.

    python scripts/bench_reference.py --reference-python PATH --batches 2 4 --rounds 7
    python scripts/bench_reference.py --reference-python PATH --task detect --batches 1 8 --rounds 15

PATH is the Python of an environment with rfdetr 1.11.2, which on a CPU trains in float32. A step is forward, loss,
backward, clipping, AdamW and the moving average, without the loops around it. All arms have the same weights, pictures
and targets, and are compared only if they give the same first loss. Each is a process; they take turns, a step each.
On a machine that is busy with other things look at the processor's time, with OMP_NUM_THREADS=1, since threads that
wait for each other count as work.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from turns import Arm, command_line, quartiles, ratios, serve, show, take_turns, timed, write_report

LARGEST_LOSS_GAP = {"fp32": 1e-4, "bf16": 2e-2}
"""Relative. In bf16 a few of the picked tokens differ."""
STOCK: dict[str, str] = {}
TUNED = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
"""By environment variables, which glibc reads: it then keeps what a process frees."""
ARMS = {
    "reference": ("reference", "fp32", STOCK),
    "reference, tuned allocator": ("reference", "fp32", TUNED),
    "ours, stock allocator": ("ours", "fp32", STOCK),
    "ours": ("ours", "fp32", TUNED),
    "ours, bf16": ("ours", "bf16", TUNED),
}
"""Package, precision, allocator; the tuned one is what this package's commands set for themselves on a CPU."""


def main() -> None:
    """Measure, or be one of the measured processes."""
    if sys.argv[1:2] == ["--serve"]:
        request = json.loads(sys.argv[2])
        serve({"ours": ours, "reference": reference}[request.pop("package")](**request))
        return
    parser = command_line(__doc__)
    parser.add_argument("--reference-python", required=True)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--task", choices=["train", "detect"], default="train")
    parser.add_argument("--batches", nargs="+", type=int, default=[2])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for batch in options.batches for row in compare(batch, options, Path(folder))]
    write_report(options, rows)


def compare(batch: int, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The arms in turn at one batch size; a row each."""
    inputs = folder / f"{batch}.pt"
    write_inputs(inputs, options.model, batch)
    with ExitStack() as stack:
        arms = {name: stack.enter_context(start(name, inputs, options)) for name in options.arms}
        first = {name: arm.ask()["result"] for name, arm in arms.items()}
        gaps = {name: abs(value / first[options.arms[0]] - 1) for name, value in first.items()}
        for name, gap in gaps.items():
            assert gap < LARGEST_LOSS_GAP[ARMS[name][1]], f"{name}: its first answer is {first[name]}, not {first}"
        answers = take_turns(arms, options.rounds, options.warmup)
    clocks = {clock: {name: [answer[clock] for answer in answers[name]] for name in arms} for clock in ("s", "cpu_s")}
    rows = [
        {
            "batch": batch,
            "arm": name,
            **{clock: quartiles(seconds[name]) for clock, seconds in clocks.items()},
            "peak_mib": round(answers[name][-1]["peak_mib"]),
            "first_answer_gap": float(f"{gaps[name]:.1e}"),
            **{
                f"{slower} / it, {clock}": ratios(seconds[slower], seconds[name])
                for slower in arms
                if slower.startswith("reference")
                for clock, seconds in clocks.items()
            },
        }
        for name in arms
    ]
    show(f"{options.model}, {options.task}, batch {batch}", [column for column in rows[0] if column != "batch"], rows)
    return rows


def start(name: str, inputs: Path, options: argparse.Namespace) -> Arm:
    package, precision, allocator = ARMS[name]
    request = {"package": package, "task": options.task, "model": options.model, "inputs": str(inputs)}
    if package == "ours":
        request["precision"] = precision
    python = options.reference_python if package == "reference" else sys.executable
    return Arm(__file__, ["--serve", json.dumps(request)], python, **allocator)


def write_inputs(path: Path, variant: str, batch: int) -> None:
    """Weights, under the reference's names, pictures of 8 bits and targets; all of them random."""
    from parts_of_a_run import build_parts, random_batch

    from rfdetr_train.checkpoint.reference_weights import to_reference

    model = build_parts([f"model={variant}"]).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)  # so that what starts at zero counts
    pictures = random_batch(batch, *model.config.size_px)
    torch.save(
        {"state": to_reference(model.state_dict()), "images": pictures.images, "targets": pictures.targets}, path
    )


def ours(task: str, model: str, precision: str, inputs: str) -> Callable[[Any], dict[str, Any]]:
    """A step of this package, or its detections."""
    from parts_of_a_run import build_parts

    from rfdetr_train.checkpoint.reference_weights import from_reference
    from rfdetr_train.data.sample import Batch
    from rfdetr_train.data.transforms import normalise

    given = torch.load(inputs, weights_only=True)
    parts = build_parts([f"model={model}", f"trainer.precision={precision}"])
    parts.model.load_state_dict(from_reference(given["state"]))
    batch = Batch(given["images"], given["targets"])

    def step() -> float:
        result = parts.step([batch])
        parts.average.step_done()
        return result.losses["loss"]

    @torch.no_grad()
    def detect() -> float:
        with parts.step.precision.autocast():
            return checksum(parts.model(images)["logits"])

    images = normalise(batch.images)
    parts.model.eval()
    if task == "detect":
        parts.step.precision.kept_casts().__enter__()  # as evaluating and predicting do, for the life of this process
    return timed(step if task == "train" else detect)


def reference(task: str, model: str, inputs: str) -> Callable[[Any], dict[str, Any]]:
    """A step of the reference as its Lightning module takes it on a CPU, or its detections."""
    from reference_answers import CONFIGS, config
    from rfdetr._namespace import _namespace_from_configs
    from rfdetr.models.lwdetr import build_criterion_from_config, build_model_from_config
    from rfdetr.training.callbacks.ema import RFDETREMACallback
    from rfdetr.training.param_groups import get_param_dict
    from rfdetr.utilities.tensors import NestedTensor
    from torch.optim.swa_utils import AveragedModel

    given = torch.load(inputs, weights_only=True)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    images = (given["images"].float() / 255 - mean) / deviation
    samples = NestedTensor(images, torch.zeros(len(images), *images.shape[2:], dtype=torch.bool), no_padding=True)
    targets = [{"labels": t["labels"], "boxes": t["boxes_cxcywh"]} for t in given["targets"]]
    model_config = CONFIGS[model](
        pretrain_weights="none.pth", num_classes=len(given["state"]["class_embed.bias"]) - 1, device="cpu"
    )
    train_config = config.TrainConfig(dataset_dir=".", output_dir=".")
    detector = build_model_from_config(model_config)
    detector.load_state_dict(given["state"], strict=False)
    criterion, _ = build_criterion_from_config(model_config, train_config)
    groups = get_param_dict(_namespace_from_configs(model_config, train_config), detector)
    optimizer = torch.optim.AdamW(groups, lr=train_config.lr, weight_decay=train_config.weight_decay, fused=False)
    averaging = RFDETREMACallback(train_config.ema_decay, train_config.ema_tau)
    average = AveragedModel(detector, use_buffers=True, multi_avg_fn=averaging._multi_avg_fn)

    def step() -> float:
        optimizer.zero_grad()
        losses = criterion(detector.train()(samples, targets), targets)
        weights = criterion.weight_dict
        loss = torch.stack([losses[name] * weights[name] for name in losses if name in weights]).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], train_config.clip_max_norm)
        optimizer.step()
        average.update_parameters(detector)
        return loss.item()

    @torch.inference_mode()
    def detect() -> float:
        return checksum(detector(images)["pred_logits"])

    detector.eval()
    return timed(step if task == "train" else detect)


def checksum(logits: Tensor) -> float:
    return float(logits.double().abs().mean())


if __name__ == "__main__":
    main()
