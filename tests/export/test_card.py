import dataclasses
import json

from rfdetr_train.engine.saved_run import TrainedModel
from rfdetr_train.export.card import model_card


def test_a_card_says_classes_sizes_and_the_score_of_these_weights(trained: TrainedModel) -> None:
    card = json.loads(json.dumps(model_card(trained, program=True)))
    assert card["classes"][2] == {"label": 2, "id": 90, "name": "zebra"}
    assert card["model"]["resolution"] == 64
    assert "64 x 64" in card["preprocessing"]["resize"]
    assert card["preprocessing"]["normalisation"]["done_by_the_file"] is True
    assert card["metrics"]["AP"] == 0.5
    assert card["source"] == {"checkpoint": "best.pt", "weights": "raw", "step": 3}


def test_weights_that_were_not_scored_have_no_score(trained: TrainedModel) -> None:
    content = {**trained.saved.content, "loop": {**trained.saved["loop"], "step": 5}}
    later = dataclasses.replace(trained, saved=dataclasses.replace(trained.saved, content=content))
    assert model_card(later, program=False)["metrics"] is None
    other = dataclasses.replace(trained, weights="ema")
    assert model_card(other, program=False)["metrics"] is None
