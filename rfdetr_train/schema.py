"""The dataclasses of `config/`, registered where `conf/*.yaml` names them as `/schema/...`."""

from hydra.core.config_store import ConfigStore

from rfdetr_train import config

OPTIMIZERS = {
    "adamw": config.AdamWConfig,
    "adam": config.AdamConfig,
    "sgd": config.SGDConfig,
    "adagrad": config.AdagradConfig,
    "rmsprop": config.RMSpropConfig,
    "nadam": config.NAdamConfig,
    "radam": config.RAdamConfig,
    "adafactor": config.AdafactorConfig,
    "lbfgs": config.LBFGSConfig,
    "muon": config.MuonConfig,
    "lion": config.LionConfig,
    "custom": config.CustomOptimizerConfig,
}
SCHEDULERS = {
    "step": config.StepScheduleConfig,
    "cosine": config.CosineScheduleConfig,
    "linear": config.LinearScheduleConfig,
    "constant": config.ConstantScheduleConfig,
    "polynomial": config.PolynomialScheduleConfig,
    "wsd": config.WSDScheduleConfig,
    "flat_cosine": config.FlatCosineScheduleConfig,
    "torch": config.TorchSchedulerConfig,
}
DATA = {"coco": config.CocoDataConfig, "shapes": config.ShapesDataConfig}
WARMUPS = {"none": config.WarmupConfig, "linear": config.LinearWarmupConfig}
AVERAGES = {"default": config.EmaConfig, "swa": config.SwaConfig, "none": config.AveragingConfig}
GROUPS = {"optimizer": OPTIMIZERS, "scheduler": SCHEDULERS, "warmup": WARMUPS, "data": DATA, "ema": AVERAGES}
COMMANDS = {"train": config.TrainConfig, "evaluate": config.EvaluateConfig}


def register() -> None:
    """Put every schema into Hydra's store; once a process is enough, and more does no harm."""
    store = ConfigStore.instance()
    for command, schema in COMMANDS.items():
        store.store(group="schema", name=command, node=schema, package="_global_")
    for group, schemas in GROUPS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
