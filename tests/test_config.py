"""Every YAML composes, every refusal names the key, the value and the remedy."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable

import pytest

from rfdetr_train import config
from rfdetr_train.cli import compose_config, conf_dir
from rfdetr_train.cli_help import option_names
from rfdetr_train.errors import UserError

OPTIONS = [
    (group, option)
    for group, options in option_names(conf_dir()).items()
    for option in options
    if group != "experiment"
]
NEEDS = {
    **{("data", name): ["data.root=somewhere"] for name in ("auto", "coco", "csv", "voc", "yolo")},
    ("optimizer", "custom"): ["optimizer._target_=torch.optim.Rprop"],
    ("ema", "swa"): ["ema.start_epoch=1"],
    ("scheduler", "torch"): ["scheduler._target_=torch.optim.lr_scheduler.StepLR"],
}


def compose(*overrides: str) -> config.TrainConfig:
    return compose_config("train", list(overrides))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_under_its_own_name(group: str, option: str) -> None:
    if group == "launcher":
        pytest.importorskip(f"hydra_plugins.hydra_{option.partition('_')[0].replace('slurm', 'submitit')}_launcher")
    composed = compose(f"{group}={option}", *NEEDS.get((group, option), []))
    if hasattr(composed, group):  # launcher and hparams are Hydra's own
        assert getattr(getattr(composed, group), "name", option) == option


@pytest.mark.parametrize("experiment", option_names(conf_dir())["experiment"])
def test_every_experiment_composes(experiment: str) -> None:
    assert isinstance(compose(f"experiment={experiment}"), config.TrainConfig)


@pytest.mark.parametrize("key", ["group_detr", "decoder_layers", "encoder_depth"])
def test_a_number_of_equal_parts_that_fills_memory_is_refused(
    key: str, small_config: Callable[..., config.ModelConfig]
) -> None:
    """A checkpoint of a stranger is built from them before anything else is known of it."""
    for value in (0, 1001, 10**9):
        with pytest.raises(UserError, match=rf"model\.{key}={value}: give a number from 1 to 1000"):
            small_config(**{key: value})
    assert getattr(small_config(**{key: 1000}), key) == 1000


def test_defaults_are_the_published_recipe() -> None:
    """Values of the RF-DETR release: AdamW 1e-4 / 1.5e-4, decays 0.8 and 0.7, clip 0.1, EMA 0.993 over 100 steps."""
    c = compose()
    assert (c.optimizer.lr, c.optimizer.encoder_lr, c.optimizer.weight_decay) == (1e-4, 1.5e-4, 1e-4)
    assert (c.optimizer.layer_decay, c.optimizer.component_decay) == (0.8, 0.7)
    assert (c.trainer.clip_norm, c.trainer.batch_size, c.trainer.accumulation_steps) == (0.1, 4, 1)
    assert isinstance(c.ema, config.EmaConfig)
    assert (c.ema.decay, c.ema.tau) == (0.993, 100.0)
    assert compose("data=coco", "data.root=x").trainer.epochs == 100


@pytest.mark.parametrize(
    ("name", "resolution", "layers", "patch", "windows"),
    [("nano", 384, 2, 16, 2), ("small", 512, 3, 16, 2), ("medium", 576, 4, 16, 2), ("large", 704, 4, 16, 2),
     ("base", 560, 3, 14, 4)],
)  # fmt: skip
def test_variants_are_the_published_ones(name: str, resolution: int, layers: int, patch: int, windows: int) -> None:
    m = compose(f"model={name}").model
    assert (m.resolution, m.decoder_layers, m.patch_size, m.num_windows) == (resolution, layers, patch, windows)
    assert (m.hidden_dim, m.num_queries, m.group_detr, m.ffn_dim) == (256, 300, 13, 2048)
    assert (m.self_attention_heads, m.cross_attention_heads, m.sampling_points) == (8, 16, 2)


@pytest.mark.parametrize(
    ("overrides", "stride", "tokens"),
    [
        ([], 32, 24 * 24),
        (["model.levels=[P3,P4,P5]"], 32, 48 * 48 + 24 * 24 + 12 * 12),
        (["model.backbone=resnet18"], 32, 24 * 24),
        (["model.num_windows=1", "model.resolution=400", "model.levels=[P4,P5]"], 16, 25 * 25 + 13 * 13),
        (["model.num_windows=1", "model.patch_size=14", "model.resolution=392"], 14, 28 * 28),
    ],
)
def test_strides_and_tokens_by_hand(overrides: list[str], stride: int, tokens: int) -> None:
    model = compose("model=nano", *overrides).model
    assert model.stride == stride
    assert model.num_tokens(model.resolution, model.resolution) == tokens


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.resolution=400"], ["model.resolution=400", "32", "384 or 416"]),
        (["model.resolution=256"], ["model.num_queries=300", "256 tokens"]),
        (["model.hidden_dim=250"], ["model.self_attention_heads=8", "250"]),
        (["model.backbone=resnet18", "model.resolution=400"], ["model.resolution=400", "stride 32 of resnet18"]),
        (["model.backbone=resnet18", "model.num_windows=2"], ["model.num_windows=2", "resnet18", "null"]),
        (["model.levels=[P5,P4]"], ["model.levels=['P5', 'P4']", "P3, P4, P5"]),
        (["model.levels=[P5]"], ["model.num_queries=300", "144 tokens"]),
        (["model.pretrained=true", "model.encoder_width=96"], ["model.encoder_width=96", "pretrained=false"]),
        (["model.pretrained=true", "weights=coco"], ["weights=coco", "vit_small_patch14_dinov2"]),
        (["model.backbone=resnet18", "weights=coco"], ["weights=coco", "vit_small_patch14_dinov2"]),
        (["model.input_channels=4"], ["model.input_channels=4", "luminance"]),
        (["model.lora_alpha=8"], ["model.lora_alpha=8", "lora_rank=0"]),
        (["model.lora_rank=8", "freeze.encoder.always=true"], ["freeze.encoder.always=True", "lora_rank=8"]),
        (["model.feature_blocks=[3,3]"], ["model.feature_blocks=[3, 3]"]),
        (["optimizer.lr=-1"], ["optimizer.lr=-1"]),
        (["optimizer.no_decay=never"], ["never", "matrices_only"]),
        (["optimizer.fused=perhaps"], ["optimizer.fused=perhaps", "auto"]),
        (["optimizer=rmsprop", "optimizer.fused=true"], ["optimizer.fused=True", "no fused form"]),
        (["optimizer=sgd", "optimizer.nesterov=true", "optimizer.momentum=0"], ["optimizer.nesterov"]),
        (["warmup=linear", "warmup.epochs=-1"], ["warmup.epochs=-1"]),
        (["optimizer.lr=inf"], ["optimizer.lr=inf"]),
        (["scheduler=cosine", "scheduler.min_factor=2"], ["scheduler.min_factor=2", "0 to 1"]),
        (["scheduler.drop_epochs=[5,3]"], ["scheduler.drop_epochs", "rising"]),
        (["trainer.epochs=0"], ["trainer.epochs=0"]),
        (["seed=99999999999999999999"], ["seed=99999999999999999999", "2^64"]),
        (["ema=swa"], ["ema.start_epoch=10", "trainer.epochs=2"]),
        (["freeze.encoder.until_epoch=5"], ["freeze.encoder.until_epoch=5", "always=true"]),
        (["optimizer.rules=[{pattern: x}]"], ["x", "sets nothing"]),
        (["trainer.batch_size=all"], ["trainer.batch_size=all", "auto"]),
        (["trainer.precision=fp8"], ["trainer.precision=fp8", "bf16"]),
        (["weights=http://host.org/x.pth"], ["weights=http://host.org/x.pth", "only https://"]),
        (["weights='http://127.0.0.1:80@host.org/x'"], ["weights=http://127.0.0.1:80@host.org/x", "only https://"]),
        (["weights=s3://bucket/x.pth"], ["weights=s3://bucket/x.pth", "only https://"]),
        (["weights='https://host.org/x.pth#sha1=00'"], ["weights=https://host.org/x.pth#sha1=00", "sha256="]),
        (["ema=none", "evaluation.weights=ema"], ["evaluation.weights=ema", "raw"]),
        (["augmentation.horizontal_flip=1.5"], ["augmentation.horizontal_flip=1.5"]),
        (["augmentation.mosaic=-0.1"], ["augmentation.mosaic=-0.1", "0 to 1"]),
        (["augmentation.zoom_out_most=1"], ["augmentation.zoom_out_most=1", "above 1"]),
        (["augmentation.affine_scale=-0.1"], ["augmentation.affine_scale=-0.1", "0 or a larger"]),
        (["augmentation.off_last_epochs=2"], ["augmentation.off_last_epochs=2", "trainer.epochs=2", "lower it"]),
        (["augmentation.extra=[{p: 1}]"], ["augmentation.extra[0]", "_target_"]),
        (["freeze.encoder.until_epoch=2", "freeze.encoder.always=true"], ["until_epoch", "always=true"]),
        (["data=coco"], ["data.root", "no value"]),
        (["data.max_megapixels=0"], ["data.max_megapixels=0", "above 0"]),
        (["data.cache=gpu"], ["data.cache=gpu", "none, ram, disk"]),
        (["data.cache_dir="], ["data.cache_dir=''"]),
        (["data.background=2"], ["data.background=2", "0 to 1"]),
        (["data.repeat_threshold=0"], ["data.repeat_threshold=0", "above 0"]),
        (["data.negatives=x", "data.background=0"], ["data.negatives=x", "data.background=0"]),
        (["loss.class_weights={circle: -1}"], ["loss.class_weights", "above 0"]),
        (["loss.class_weights=balanced"], ["loss.class_weights=balanced", "auto"]),
        (["+model.hiden=3"], ["model.hiden", "hidden_dim"]),
        (["++trainer.epoch=3"], ["trainer.epoch", "epochs"]),
    ],
)
def test_refusals_name_key_value_and_remedy(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        compose(*overrides)
    assert [word for word in words if word not in str(refusal.value)] == []


def test_every_key_is_documented() -> None:
    """A docstring stands under each field, unless the field only gives an inherited one another default."""
    undocumented = []
    for section in {value for value in vars(config).values() if dataclasses.is_dataclass(value)}:
        inherited = {name for parent in section.__mro__[1:] for name in getattr(parent, "__annotations__", {})}
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
        assert isinstance(tree, ast.ClassDef)
        for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                is_section = "Config" in ast.unparse(node.annotation) and "list" not in ast.unparse(node.annotation)
                if not (documented or is_section or node.target.id in inherited):
                    undocumented.append(f"{section.__name__}.{node.target.id}")
    assert undocumented == []


def test_strong_stages_end_a_tenth_before_the_run_unless_told_otherwise() -> None:
    strong = compose("augmentation=composites").augmentation
    assert [strong.calm_from(epochs) for epochs in (1, 9, 10, 50, 100)] == [1, 9, 9, 45, 90]
    assert [dataclasses.replace(strong, off_last_epochs=3).calm_from(epochs) for epochs in (2, 3, 100)] == [0, 0, 97]
    assert strong.in_epoch(44, 50) is strong
    assert strong.in_epoch(99, None) is strong
    calm = strong.in_epoch(45, 50)
    assert {name: value for name, value in vars(calm).items() if value != getattr(strong, name)} == dict.fromkeys(
        ("mosaic", "mixup", "copy_paste", "iou_crop", "zoom_out", "affine", "photometric"), 0.0
    )
