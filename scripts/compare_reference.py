"""Compare with the reference package on real sizes: python scripts/compare_reference.py --reference-python PATH.

PATH is the Python of an environment with rfdetr 1.11.2, which answers through reference_answers.py. Without more,
full-size detectors of random weights are compared in float64, where no two tokens are so near that rounding ranks them.
With --checkpoint RUN_OR_FILE and --pictures FOLDER, a trained detector is exported and loaded by the reference package,
and both detect in the same pictures.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from rfdetr_train.checkpoint.reference_weights import MASK_TOKEN, from_reference, to_reference
from rfdetr_train.cli import compose_config
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.image_file import read_image
from rfdetr_train.data.transforms import normalise
from rfdetr_train.engine.saved_run import load_trained_model
from rfdetr_train.export.weights_file import reference_file
from rfdetr_train.loggers.console import print_table
from rfdetr_train.matcher import match
from rfdetr_train.models import backbone
from rfdetr_train.models.rfdetr import RFDETR, build_model
from rfdetr_train.position_table import resize_positions
from rfdetr_train.postprocess import detections

NUM_CLASSES, NUM_TARGETS = 90, 5
COLUMNS = ("variant", "eval logits", "eval boxes", "training outputs", "total loss", "gradients", "back again", "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference-python", required=True)
    parser.add_argument("--variants", nargs="+", default=["nano", "small", "medium", "large", "base"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--threshold", type=float, default=0.05)
    options = parser.parse_args()
    backbone.resize_positions = resized_as_in_the_reference
    if options.checkpoint:
        compare_trained(options)
    else:
        rows = [compare_variant(variant, options) for variant in options.variants]
        print_table("largest difference over largest value, float64", COLUMNS, rows)


def resized_as_in_the_reference(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Positions resized in float32 also where the model is in float64; only base's table has another grid."""
    same_grid = table.shape[1] == grid[0] * grid[1]
    return resize_positions(table, grid) if same_grid else resize_positions(table.float(), grid).to(table.dtype)


def ask_reference(python: str, task: str, **request: Any) -> Any:
    """The answer of reference_answers.py."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "request.pt"), Path(folder, "answer.pt")
        torch.save({"task": task, **request}, asked)
        script = Path(__file__).with_name("reference_answers.py")
        subprocess.run([python, script, asked, answered], check=True, cwd=folder)
        return torch.load(answered, weights_only=True)


def compare_variant(variant: str, options: argparse.Namespace) -> list[str]:
    """A row of the table: the reference's random weights in our model, and brought back to it."""
    started = time.monotonic()
    config = compose_config("train", [f"model={variant}"]).model
    generator = torch.Generator().manual_seed(options.seed)
    shape = (options.batch, 3, config.resolution, config.resolution)
    images = torch.randn(shape, generator=generator, dtype=torch.float64)
    targets = [random_target(generator) for _ in range(options.batch)]
    question = {"variant": variant, "seed": options.seed, "num_classes": NUM_CLASSES, "images": images}
    theirs = ask_reference(
        options.reference_python,
        "compute",
        **question,
        targets=[{"labels": t["labels"], "boxes": t["boxes_cxcywh"]} for t in targets],
        state=None,
    )
    model = build_model(config, NUM_CLASSES).double()
    model.load_state_dict(from_reference(theirs["state"]))
    ours = our_answer(model, images, targets)
    returned = to_reference(model.state_dict())
    assert all(torch.equal(returned[name], theirs["state"][name]) for name in returned.keys() - {MASK_TOKEN})
    again = ask_reference(options.reference_python, "compute", **question, targets=[], state=returned)
    errors = [
        worst(ours["eval"], theirs["eval"], "logits"),
        worst(ours["eval"], theirs["eval"], "boxes_cxcywh"),
        worst(ours["train"], theirs["train"]),
        difference(ours["loss"], theirs["loss"]),
        worst(ours["gradients"], from_reference(theirs["gradients"])),
        worst(again["eval"], theirs["eval"]),
    ]
    row = [variant, *(f"{error:.1e}" for error in errors), f"{time.monotonic() - started:.0f}"]
    print("  ".join(f"{column}: {value}" for column, value in zip(COLUMNS, row, strict=True)), flush=True)
    return row


def random_target(generator: torch.Generator) -> dict[str, Tensor]:
    centre = torch.rand(NUM_TARGETS, 2, generator=generator, dtype=torch.float64) * 0.6 + 0.2
    size = torch.rand(NUM_TARGETS, 2, generator=generator, dtype=torch.float64) * 0.3 + 0.05
    labels = torch.randint(NUM_CLASSES, (NUM_TARGETS,), generator=generator)
    return {"labels": labels, "boxes_cxcywh": torch.cat((centre, size), dim=1)}


def our_answer(model: RFDETR, images: Tensor, targets: list[dict[str, Tensor]]) -> dict[str, Any]:
    """The same as reference_answers.compute, under our names."""
    with torch.no_grad():
        evaluated = plain(model.eval()(images))
    outputs = model.train()(images)
    num_boxes = len(targets) * NUM_TARGETS * model.config.group_detr
    loss = Criterion(model.config.num_queries, match)(outputs, targets, num_boxes)["loss"]
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"eval": evaluated, "train": plain(outputs), "loss": loss.detach(), "gradients": gradients}


def plain(outputs: dict[str, Any]) -> dict[str, Tensor]:
    parts = {"last": outputs, "enc": outputs["enc"]}
    parts |= {f"aux_{index}": part for index, part in enumerate(outputs.get("aux", []))}
    return {
        f"{name} {kind}": part[kind].detach() for name, part in parts.items() for kind in ("logits", "boxes_cxcywh")
    }


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest value."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-300))


def worst(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], kind: str = "") -> float:
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    return max(difference(ours[name], theirs[name]) for name in ours if kind in name)


def compare_trained(options: argparse.Namespace) -> None:
    """The detections of an exported checkpoint: ours against those of the reference package."""
    trained = load_trained_model(options.checkpoint)
    side = trained.model.config.resolution
    files = sorted(path for path in options.pictures.rglob("*") if path.suffix in (".jpg", ".png"))[:16]
    # resized here: the reference package resizes without antialias, which is no matter of the weights
    assert files, f"{options.pictures}: no pictures"
    images = torch.stack([functional.resize(read_image(path), [side, side], antialias=True) for path in files])
    with tempfile.NamedTemporaryFile(suffix=".pth") as exported:
        exported.write(reference_file(trained))
        exported.flush()
        pictures = [image.permute(1, 2, 0).contiguous() for image in images]
        request = {"path": exported.name, "pictures": pictures, "threshold": options.threshold}
        theirs = ask_reference(options.reference_python, "predict", **request)
    with torch.inference_mode():
        outputs = trained.model(normalise(images))
    sizes_px = torch.full((len(images), 2), side)
    ours = detections(outputs, sizes_px, trained.model.config.num_queries, len(trained.label_map.names))
    rows = []
    for path, mine, other in zip(files, ours, theirs, strict=True):
        kept = mine["scores"] > options.threshold
        same = torch.equal(mine["labels"][kept], other["labels"])
        same &= [trained.label_map.names[label] for label in mine["labels"][kept]] == other["names"]
        boxes, scores = ((mine[key][kept] - other[key]).abs().max().item() for key in ("boxes_xyxy", "scores"))
        rows.append([path.name, int(kept.sum()), same, f"{boxes / side:.1e}", f"{scores:.1e}"])
    print_table(f"scores above {options.threshold}", ["picture", "detections", "same classes", "boxes", "scores"], rows)


if __name__ == "__main__":
    main()
