import importlib

import pytest
import torch

from rfdetr_train.checkpoint.reference_weights import from_reference
from rfdetr_train.cli import compose_config
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.transforms import normalise
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import build_model


def test_our_arm_answers_for_the_weights_and_pictures_that_are_given(tmp_path):
    script = importlib.import_module("bench_reference")
    inputs = tmp_path / "inputs.pt"
    script.write_inputs(inputs, "tiny", batch=2)
    given = torch.load(inputs, weights_only=True)
    model = build_model(compose_config("train", ["model=tiny"]).model, 90)
    model.load_state_dict(from_reference(given["state"]))
    images = normalise(given["images"])

    with torch.no_grad():
        detected = script.checksum(model.eval()(images)["logits"])
    assert script.ours("detect", "tiny", "fp32", str(inputs))(None)["result"] == pytest.approx(detected)
    num_boxes = 4 * sum(len(target["labels"]) for target in given["targets"])
    loss = Criterion(50, match)(model.train()(images), given["targets"], num_boxes)["loss"].item()
    trained = script.ours("train", "tiny", "fp32", str(inputs))
    assert trained(None)["result"] == pytest.approx(loss, rel=1e-5)
    assert trained(None)["result"] != pytest.approx(loss, rel=1e-5)  # after a step of the optimizer
