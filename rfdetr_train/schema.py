"""The dataclasses of `config/`, registered where `conf/*.yaml` names them as `/schema/...`."""

from hydra.core.config_store import ConfigStore

from rfdetr_train import config

OPTIMIZERS: dict[str, type] = {
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
SCHEDULERS: dict[str, type] = {
    "step": config.StepScheduleConfig,
    "cosine": config.CosineScheduleConfig,
    "linear": config.LinearScheduleConfig,
    "constant": config.ConstantScheduleConfig,
    "polynomial": config.PolynomialScheduleConfig,
    "wsd": config.WSDScheduleConfig,
    "flat_cosine": config.FlatCosineScheduleConfig,
    "torch": config.TorchSchedulerConfig,
}
DATA: dict[str, type] = {
    **dict.fromkeys(("auto", "coco", "csv", "voc", "yolo"), config.DataConfig),
    "shapes": config.ShapesDataConfig,
}
WARMUPS: dict[str, type] = {"none": config.WarmupConfig, "linear": config.LinearWarmupConfig}
AVERAGES: dict[str, type] = {"default": config.EmaConfig, "swa": config.SwaConfig, "none": config.AveragingConfig}
GROUPS: dict[str, dict[str, type]] = {
    "optimizer": OPTIMIZERS,
    "scheduler": SCHEDULERS,
    "warmup": WARMUPS,
    "data": DATA,
    "ema": AVERAGES,
}
COMMANDS: dict[str, type] = {
    "train": config.TrainConfig,
    "evaluate": config.EvaluateConfig,
    "predict": config.PredictConfig,
    "export": config.ExportConfig,
    "doctor": config.DoctorConfig,
}


def register() -> None:
    """Put every schema into Hydra's store; once a process is enough, and more does no harm."""
    store = ConfigStore.instance()
    for command, schema in COMMANDS.items():
        store.store(group="schema", name=command, node=schema, package="_global_")
    store.store(group="hydra/sweeper", name="optuna", node=config.OptunaSweeperConfig)
    for group, schemas in GROUPS.items():
        for name, schema in schemas.items():
            store.store(group=f"schema/{group}", name=name, node=schema)
