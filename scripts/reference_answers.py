"""What the reference package answers: run by compare_reference.py with the Python of an environment that has rfdetr.

    python reference_answers.py REQUEST ANSWER

REQUEST is a file of torch.save with one of two tasks. `compute`: a variant of random weights (or those of `state`) on
given images and targets, in evaluation, in training, with loss and gradients. `predict`: the detections of an exported
checkpoint on given pictures.
"""

import sys
from typing import Any

import numpy as np
import rfdetr
import torch
from PIL import Image
from rfdetr import config
from rfdetr.models.lwdetr import build_criterion_from_config, build_model_from_config

CONFIGS = {
    name: getattr(config, f"RFDETR{name.capitalize()}Config") for name in ("nano", "small", "medium", "large", "base")
}
WEIGHT_NOISE = 0.02  # so that what starts at zero, such as the last box layer, counts


def main() -> None:
    request = torch.load(sys.argv[1], weights_only=True)
    torch.save({"compute": compute, "predict": predict}[request.pop("task")](**request), sys.argv[2])


def compute(
    variant: str, seed: int, num_classes: int, images: torch.Tensor, targets: list[dict], state: dict | None
) -> dict[str, Any]:
    """Outputs, total loss and gradients of a detector in float64, and its weights."""
    torch.manual_seed(seed)
    model_config = CONFIGS[variant](pretrain_weights="none.pth", num_classes=num_classes, device="cpu")
    model = build_model_from_config(model_config).double()
    if state is None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += WEIGHT_NOISE * torch.randn_like(parameter)
    else:
        loaded = model.load_state_dict(state, strict=False)
        assert (loaded.missing_keys, loaded.unexpected_keys) == (["_kp_active_mask"], []), loaded
    with torch.no_grad():
        answer = {"eval": plain(model.eval()(images), aux=False), "state": model.state_dict()}
    if state is None:
        answer |= train(model.train(), model_config, images, targets)
    return answer


def train(model: Any, model_config: Any, images: torch.Tensor, targets: list[dict]) -> dict[str, Any]:
    outputs = model(images)
    train_config = config.TrainConfig(dataset_dir=".", output_dir=".")
    criterion, _ = build_criterion_from_config(model_config, train_config)
    losses = criterion(outputs, targets)
    total = sum(losses[name] * weight for name, weight in criterion.weight_dict.items() if name in losses)
    total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"train": plain(outputs, aux=True), "loss": total.detach(), "gradients": gradients}


def plain(outputs: dict[str, Any], aux: bool) -> dict[str, torch.Tensor]:
    """Logits and boxes of each output under `last`, `aux_0` and so on, and `enc`."""
    parts = {"last": outputs, "enc": outputs["enc_outputs"]}
    parts |= {f"aux_{index}": part for index, part in enumerate(outputs["aux_outputs"] if aux else [])}
    kinds = {"logits": "pred_logits", "boxes_cxcywh": "pred_boxes"}
    return {f"{name} {kind}": part[key].detach() for name, part in parts.items() for kind, key in kinds.items()}


def predict(path: str, pictures: list[torch.Tensor], threshold: float) -> list[dict[str, Any]]:
    """Detections above a score in pictures (height, width, 3) of 8 bits, best first."""
    model = rfdetr.RFDETR.from_checkpoint(path, device="cpu")
    found = model.predict([Image.fromarray(np.asarray(picture)) for picture in pictures], threshold=threshold)
    return [
        {
            "boxes_xyxy": torch.from_numpy(one.xyxy),
            "scores": torch.from_numpy(one.confidence),
            "labels": torch.from_numpy(one.class_id),
            "names": [str(name) for name in one.data["class_name"]],
        }
        for one in found
    ]


if __name__ == "__main__":
    main()
