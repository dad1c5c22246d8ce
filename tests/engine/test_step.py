"""A step on a real, very small detector: accumulation, normalisation, refusal of non-finite numbers."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.overrides import TorchFunctionMode

from rfdetr_train.config import TRANSFORMER_KEYS, ModelConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.sample import Batch
from rfdetr_train.engine.precision import Precision
from rfdetr_train.engine.step import TrainStep
from rfdetr_train.errors import UserError
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import RFDETR, build_model

SmallModel = Callable[[], RFDETR]
CPU = torch.device("cpu")


@pytest.fixture
def small_model(small_config: Callable[..., ModelConfig]) -> Callable[[], RFDETR]:
    def build() -> RFDETR:
        torch.manual_seed(1)
        return build_model(small_config(), 3)

    return build


def batch_of(count: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 64, 64), generator=generator, dtype=torch.uint8)
    targets = []
    for index in range(count):
        boxes = torch.rand(index + 1, 4, generator=generator) * 0.3 + 0.2
        labels = torch.randint(0, 3, (index + 1,), generator=generator)
        targets.append({"boxes_cxcywh": boxes, "labels": labels, "image_id": index, "size_px": (64, 64)})
    return Batch(images, targets)


def split_batch(batch: Batch, size: int) -> list[Batch]:
    starts = range(0, len(batch.images), size)
    return [Batch(batch.images[s : s + size], batch.targets[s : s + size]) for s in starts]


def train_step(model: RFDETR, lr: float = 0.0, clip_norm: float = 0.0, precision: str = "fp32") -> TrainStep:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return TrainStep(model, Criterion(10, match), optimizer, Precision(precision, CPU), clip_norm)


def gradients_of(model: RFDETR, windows: list[Batch]) -> tuple[torch.Tensor, dict[str, float]]:
    result = train_step(model)(windows)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), result.losses


def test_batch_4_once_equals_batch_2_twice(small_model: SmallModel) -> None:
    """The issue's bound is 1e-6 on gradients of the same images; their targets differ in number on purpose."""
    whole, losses_whole = gradients_of(small_model(), [batch_of(4)])
    parts, losses_parts = gradients_of(small_model(), split_batch(batch_of(4), 2))
    assert (whole - parts).abs().max() <= 1e-6 * whole.abs().max()
    assert losses_whole["loss"] == pytest.approx(losses_parts["loss"], rel=1e-6)
    naive = torch.cat([gradients_of(small_model(), [b])[0].unsqueeze(0) for b in split_batch(batch_of(4), 2)]).mean(0)
    assert (whole - naive).abs().max() > 1e-3 * whole.abs().max()  # normalising each micro-batch alone is another thing


def test_the_norm_is_of_all_gradients_before_clipping(small_model: SmallModel) -> None:
    model = small_model()
    result = train_step(model, clip_norm=0.01)([batch_of(2)])
    clipped = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert result.grad_norm > 0.01
    assert clipped.item() == pytest.approx(0.01, rel=1e-3)


def test_images_without_targets_train_on(small_model: SmallModel) -> None:
    batch = batch_of(2)
    empty = [
        {**t, "boxes_cxcywh": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)} for t in batch.targets
    ]
    result = train_step(small_model(), lr=0.1)([Batch(batch.images, empty)])
    assert 0 < result.losses["loss"] < 1e4


@pytest.mark.parametrize("closure", [False, True])
def test_a_loss_that_is_not_finite_changes_nothing(small_model: SmallModel, closure: bool) -> None:
    model = small_model()
    step = train_step(model, lr=1.0)
    if closure:
        step.optimizer, step.wants_closure = torch.optim.LBFGS(model.parameters()), True
    with torch.no_grad():
        model.class_embed.bias.fill_(float("nan"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = step([batch_of(2)], measure_groups=True)
    assert result.skipped
    assert math.isnan(result.losses["loss"])
    assert result.group_norms is None
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) or "class_embed.bias" in name for name in before)
    with torch.no_grad():
        model.class_embed.bias.fill_(-2.0)
    assert step([batch_of(2)]).group_norms is None  # not asked for in this step
    assert not torch.equal(before["projector.norm.weight"], model.projector.norm.weight)


def test_a_skipped_step_leaves_the_statistics_of_batch_norms(small_config: Callable[..., ModelConfig]) -> None:
    pyramid = small_config(**dict.fromkeys(TRANSFORMER_KEYS), backbone="test_resnet")
    model = build_model(pyramid, 3)
    step = train_step(model)
    with torch.no_grad():
        next(model.backbone.parameters()).fill_(float("inf"))
    before = [buffer.clone() for buffer in step._statistics]
    assert step([batch_of(2)]).skipped
    assert before
    assert all(torch.equal(*pair) for pair in zip(before, step._statistics, strict=True))


def test_an_infinite_gradient_under_a_finite_loss_is_skipped_too(small_model: SmallModel) -> None:
    model = small_model()
    step = train_step(model, lr=1.0, clip_norm=0.1)
    handle = model.projector.norm.weight.register_hook(lambda gradient: gradient * float("inf"))
    before = model.class_embed.bias.clone()
    result = step([batch_of(2)])
    assert result.skipped
    assert math.isfinite(result.losses["loss"])
    assert torch.equal(before, model.class_embed.bias)
    handle.remove()
    assert not step([batch_of(2)]).skipped


def test_an_overflow_in_fp16_lowers_the_scale(small_model: SmallModel) -> None:
    """A CPU has a scaler too; its first scale is 65,536, under which a gradient overflows here."""
    model = small_model()
    step = train_step(model, lr=1.0)
    step.precision.scaler = torch.amp.GradScaler("cpu")
    handle = model.class_embed.bias.register_hook(lambda gradient: gradient * 3e38)
    assert step([batch_of(2)]).skipped
    assert step.precision.scaler.get_scale() == 32768.0
    handle.remove()
    assert not step([batch_of(2)]).skipped
    assert step.precision.scaler.get_scale() == 32768.0


class LittleMemory:
    """A criterion on a device that has room for `pictures` at once."""

    def __init__(self, pictures: int) -> None:
        self.criterion, self.pictures = Criterion(10, match), pictures
        self.seen: list[int] = []

    def __call__(self, outputs: dict, targets: list[dict], num_boxes: float) -> dict[str, torch.Tensor]:
        if len(targets) > self.pictures:
            raise torch.OutOfMemoryError("tried to allocate 20.00 MiB")
        self.seen.append(len(targets))
        return self.criterion(outputs, targets, num_boxes)


def test_shrinking_keeps_the_gradients_of_the_step(small_model: SmallModel) -> None:
    whole, losses = gradients_of(small_model(), [batch_of(4)])
    model = small_model()
    step = train_step(model)
    step.pieces.on_oom, step.criterion = "shrink", LittleMemory(1)
    result = step([batch_of(4)])
    assert step.criterion.seen == [1, 1, 1, 1]
    parts = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert (whole - parts).abs().max() <= 1e-6 * whole.abs().max()
    assert result.losses["loss"] == pytest.approx(losses["loss"], rel=1e-6)
    assert result.num_images == 4
    step([batch_of(3)])  # it does not try larger parts again
    assert step.criterion.seen == [1] * 7


@pytest.mark.parametrize(("on_oom", "room", "words"), [
    ("error", 2, "4 pictures of 64x64; use trainer.on_oom=shrink, a lower trainer.batch_size"),
    ("shrink", 0, "1 pictures of 64x64; use trainer.precision=bf16, or a smaller model"),
])  # fmt: skip
def test_memory_that_does_not_do_is_refused_with_what_to_set(
    small_model: SmallModel, on_oom: str, room: int, words: str
) -> None:
    step = train_step(small_model())
    step.pieces.on_oom, step.criterion = on_oom, LittleMemory(room)
    with pytest.raises(UserError, match=f"memory ran out in a step of {words}"):
        step([batch_of(4)])


def test_lbfgs_evaluates_the_loss_itself_and_lowers_it(small_model: SmallModel) -> None:
    model = small_model()
    step = train_step(model)
    step.optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    step.wants_closure = True
    losses = [step([batch_of(2)]).losses["loss"] for _ in range(3)]
    assert losses[2] < losses[0]


def test_bf16_keeps_boxes_and_losses_in_float32(small_model: SmallModel) -> None:
    model = small_model()
    model.train()
    with Precision("bf16", CPU).autocast():
        outputs = model(torch.randn(1, 3, 64, 64))
    assert outputs["boxes_cxcywh"].dtype == torch.float32
    losses = Criterion(10, match)(outputs, batch_of(1).targets, 2.0)
    assert losses["loss"].dtype == torch.float32


def test_the_norms_of_each_group_where_asked_for(small_model: SmallModel) -> None:
    """One group of plain SGD: the update is the rate times the clipped gradient."""
    step = train_step(small_model(), lr=0.5, clip_norm=0.01)
    assert step([batch_of(1)]).group_norms is None
    norms = step([batch_of(1)], measure_groups=True).group_norms
    assert norms is not None
    assert norms["grad_norm"]["0"] == pytest.approx(0.01, rel=1e-3)
    assert norms["update_norm"]["0"] == pytest.approx(0.005, rel=1e-2)


class Waits(TorchFunctionMode):
    """Names the calls that would wait for an accelerator; a copy on the host can be read without."""

    READS = ("cpu", "tolist", "item", "nonzero", "numpy", "__bool__", "__int__", "__float__", "__index__")

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.on_host: list[torch.Tensor] = []
        super().__init__()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        by_mask = name == "__getitem__" and any(t.dtype == torch.bool for t in tensors[1:])
        if (name in self.READS or by_mask) and not any(t is host for t in tensors for host in self.on_host):
            self.calls.append(name)
        result = function(*args, **(kwargs or {}))
        if name == "cpu":
            self.on_host.append(result)
        return result


@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_waits_twice_for_an_accelerator(small_model: SmallModel, batch: int) -> None:
    """Once for the costs of all pictures, groups and outputs, once for its own numbers."""
    model = small_model()
    step = train_step(model, clip_norm=0.1)
    step.optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with Waits() as waits:
        step([batch_of(batch)])
    assert waits.calls == ["cpu", "tolist"]
