import json

import pytest
import torch

from rfdetr_train.engine.trained_model import TrainedModel
from rfdetr_train.errors import UserError
from rfdetr_train.export import onnx_file, program


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(UserError, match="format=onnx: pip install onnxscript; the extra `export`"):
        onnx_file.require_onnx()


def test_an_onnx_file_runs_in_any_batch_and_says_what_it_is(
    trained: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    content = onnx_file.onnx_file(trained, {"classes": [{"label": 0, "id": 3, "name": "ant"}]}, opset=None)

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
