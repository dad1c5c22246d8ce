import json
from itertools import pairwise

import pytest
import torch

from rfdetr_train.engine.saved_run import TrainedModel
from rfdetr_train.errors import UserError
from rfdetr_train.export import program
from rfdetr_train.export.program import DeployedDetector, check_agreement, clear_pictures


def test_a_program_that_answers_otherwise_is_refused(trained: TrainedModel) -> None:
    detector = DeployedDetector(trained)

    def off_by(boxes_error: float, logits_error: float, from_batch: int = 1):
        def run(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            boxes, logits = detector(images)
            large_batch = len(images) >= from_batch
            return boxes + (boxes_error if large_batch else 0), logits + (logits_error if large_batch else 0)

        return run

    check_agreement(off_by(0.9e-4, -0.9e-4), detector, "x")
    with pytest.raises(UserError, match=r"format=x: .* batch of 5 .* differs from the detector by 2.0e-04"):
        check_agreement(off_by(2e-4, 0.0, from_batch=5), detector, "x")
    with pytest.raises(UserError, match="batch of 2"):
        check_agreement(off_by(0.0, -2e-4, from_batch=2), detector, "x")
    for nan in ((float("nan"), 0.0), (0.0, float("nan"))):
        with pytest.raises(UserError, match="batch of 1"):
            check_agreement(off_by(*nan), detector, "x")


class Ranked:
    """Stands for a detector: the gap of each picture that it is shown is known beforehand."""

    size_px = (2, 2)

    def __init__(self, *gaps: float) -> None:
        self.gaps, self.shown = list(gaps), []

    def smallest_gap(self, picture: torch.Tensor) -> float:
        self.shown.append(picture)
        return self.gaps[len(self.shown) - 1]


def test_pictures_are_those_that_rounding_does_not_decide() -> None:
    detector = Ranked(0.0, 3e-5, 1e-6, 2e-5, 1.0)
    pictures = clear_pictures(detector, 2)
    assert len(detector.shown) == 4
    assert torch.equal(pictures, torch.cat([detector.shown[3], detector.shown[1]]))


def test_where_no_picture_is_clear_the_clearest_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_PICTURES", 3)
    detector = Ranked(2e-6, 0.0, 3e-6)
    assert torch.equal(clear_pictures(detector, 2), torch.cat([detector.shown[0], detector.shown[2]]))


def test_the_gap_is_between_tokens_that_follow_each_other(trained: TrainedModel) -> None:
    detector = DeployedDetector(trained)
    pictures = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        scores = trained.model((pictures - detector.mean) / detector.std)["enc"]["logits"].amax(-1).double().numpy()
    by_hand = min(float(a - b) for row in scores for a, b in pairwise(row))
    assert detector.smallest_gap(pictures) == pytest.approx(by_hand, abs=1e-7)
    assert by_hand >= 0


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(UserError, match="format=onnx: pip install onnxscript; the extra `export`"):
        program.require_onnx()


def test_an_onnx_file_runs_in_any_batch_and_says_what_it_is(
    trained: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    content = program.onnx_file(trained, {"classes": [{"label": 0, "id": 3, "name": "ant"}]}, opset=None)

    model = onnx.load_from_string(content)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 20}
    properties = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert properties["classes"] == [{"label": 0, "id": 3, "name": "ant"}]
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert [entry.shape for entry in session.get_inputs()] == [["batch", 3, 64, 64]]
    outputs = {entry.name: entry.shape for entry in session.get_outputs()}
    assert outputs == {"boxes_xyxy": ["batch", 10, 4], "logits": ["batch", 10, 3]}

    detector = program.DeployedDetector(trained)
    pictures = program.clear_pictures(detector, 7)
    with torch.no_grad():
        expected = detector(pictures)
    for answer, wanted in zip(session.run(None, {"images": pictures.numpy()}), expected, strict=True):
        assert torch.allclose(torch.from_numpy(answer), wanted, atol=1e-4)
