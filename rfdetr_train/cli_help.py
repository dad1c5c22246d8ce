"""What the command line says: its help, and an explanation of what it refuses."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

from rfdetr_train.errors import did_you_mean
from rfdetr_train.override import quoted

HELP = """\
Train RF-DETR detectors.

  python -m rfdetr_train [{commands}] key=value ...      (train when no command is named)

Examples
  python -m rfdetr_train model=nano                                 train on the demo set, which writes itself
  python -m rfdetr_train model=nano data=auto data.root=PATH        train on your own: COCO, YOLO, VOC or CSV
  python -m rfdetr_train experiment=demo                            a tiny detector, minutes on a processor
  python -m rfdetr_train -m optimizer.lr=1e-4,2e-4                  a sweep, one folder a job
  python -m rfdetr_train -m hparams=rates                           an Optuna study;  sweep_dir=SWEEP: go on with any
  python -m rfdetr_train evaluate checkpoint=RUN                    score a run or a checkpoint file
  python -m rfdetr_train predict checkpoint=RUN source=FOLDER       or a picture, a pattern, a video
  python -m rfdetr_train export checkpoint=RUN format=onnx          or torch_export, safetensors, reference
  python -m rfdetr_train doctor data=auto data.root=PATH            what is wrong with a data set
  python -m rfdetr_train report RUN                                 make report.html again, also while it runs
  python -m rfdetr_train compare RUN RUN                            differing keys, curves, metrics
  python -m rfdetr_train replay RUN/nonfinite-step-9.pt             a step that diverged again: where it begins
  python -m rfdetr_train RUN/config.yaml                            repeat a run

Choices (group=option)
{groups}

Flags
  --cfg job          print the whole config and stop        --help       this page
  -m                 sweep: key=a,b runs every combination  --version    the version

Every key and its meaning: COMMAND --help; its value: --cfg job.
"""

GROUP_COMMANDS = ("train", "doctor")
"""Those that have groups to choose from."""


def help_text(conf: Path, commands: Iterable[str]) -> str:
    """The page of `--help`; the groups are read from the folders of `conf`."""
    lines = [f"  {group:<14} {', '.join(options)}" for group, options in option_names(conf).items()]
    return HELP.format(commands="|".join(commands), groups="\n".join(lines))


def command_help(command: str) -> str:
    """The page of `COMMAND --help`: every key with its meaning."""
    lines = [f"python -m rfdetr_train {command} key=value ...", ""]
    for key, meaning in key_meanings(command):
        lines += textwrap.wrap(f"{key}  {meaning}", width=118, subsequent_indent="    ", break_on_hyphens=False)
    lines += ["", f"Their values: python -m rfdetr_train {command} --cfg job"]
    return "\n".join(lines) + "\n"


def key_meanings(command: str) -> Iterator[tuple[str, str]]:
    """Every key of a command and what it does, then those that only one choice of a group has."""
    from rfdetr_train import schema

    common = dict(_meanings(schema.COMMANDS[command], ""))
    yield from common.items()
    for group, choices in schema.GROUPS.items() if command in GROUP_COMMANDS else ():
        for choice, own in choices.items():
            for key, meaning in _meanings(own, f"{group}."):
                if key not in common:
                    yield key, f"(with {group}={choice}) {meaning}"


def known_keys(command: str) -> set[str]:
    """Every dotted key of the command's schema, sections and groups included."""
    keys = {key for key, _ in key_meanings(command)}
    sections = {key[:end] for key in keys for end, character in enumerate(key) if character == "."}
    return keys | sections | {"train": {"experiment", "hparams"}, "doctor": {"experiment"}}.get(command, set())


def _meanings(schema: type, prefix: str) -> Iterator[tuple[str, str]]:
    """Dotted key and docstring of each field, section after section."""
    hints = get_type_hints(schema)
    docs = {name: doc for base in reversed(schema.__mro__) for name, doc in _field_docs(base)}
    for name in (field.name for field in dataclasses.fields(schema)):
        if dataclasses.is_dataclass(hints[name]):
            yield from _meanings(hints[name], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", docs.get(name, "")


def _field_docs(schema: type) -> Iterable[tuple[str, str]]:
    """Name and docstring of each field that the class itself declares, read from its source."""
    if not dataclasses.is_dataclass(schema):
        return
    body = ast.parse(textwrap.dedent(inspect.getsource(schema))).body[0].body  # type: ignore[attr-defined]
    for declared, below in pairwise(body):
        if isinstance(declared, ast.AnnAssign) and isinstance(below, ast.Expr):
            yield ast.unparse(declared.target), " ".join(ast.literal_eval(below.value).split())


def option_names(conf: Path) -> dict[str, list[str]]:
    """Config group -> its options, from the files of `conf`."""
    folders = sorted(folder for folder in conf.iterdir() if folder.is_dir())
    return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}


EXTRAS = {"joblib": "joblib", "ray": "ray", "submitit_slurm": "slurm", "submitit_local": "slurm"}
"""Hydra's launchers, and the extra of this package that each comes with."""
UNHELPFUL = ("Set the environment variable HYDRA_FULL_ERROR", "To append to your", "Config search", "provider=")


def explain(error: BaseException, command: str, arguments: list[str]) -> str:
    """A refusal of Hydra's or ours as a plain message, with the nearest known key where one was misspelt."""
    if type(error).__name__ == "OverrideParseException":
        return _quoted_form(str(error.override))  # type: ignore[attr-defined]
    lines = [line for line in str(error).splitlines() if line.strip() and not line.strip().startswith(UNHELPFUL)]
    causes = [str(error.__cause__).splitlines()[0]] if error.__cause__ is not None and str(error.__cause__) else []
    message = "\n".join(lines + [cause for cause in causes if cause not in lines])
    hints = [hint for word in _override_keys(arguments) if (hint := _key_hint(word, command))]
    return _missing_extra(message) or "\n".join([message or type(error).__name__, *hints])


def _quoted_form(override: str) -> str:
    """What to type instead of an override that Hydra cannot read: commas, brackets, quotes and such want quoting."""
    key, _, value = override.partition("=")
    bare = value.strip("'\"")
    return f'{override}: cannot be read; quote the value, in a shell: "{key}={quoted(bare)}"'


def _override_keys(arguments: list[str]) -> list[str]:
    """Keys that are meant to exist; `+key=` may name an entry of a dict, whose keys the schema does not know."""
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith(("+", "-"))]
    return [override.lstrip("~").split("=", 1)[0].split("@")[0] for override in overrides]


def _key_hint(key: str, command: str) -> str | None:
    """`key: did you mean X?` if `key` is neither a key nor a group of the command's own config."""
    known = known_keys(command)
    if key.startswith("hydra") or key in ("launcher", "sweep_dir"):
        return None
    if key in known:
        members = ", ".join(sorted(name for name in known if name.startswith(f"{key}.")))
        has_groups = command in GROUP_COMMANDS
        return None if has_groups or not members else f"{key} is a section of {command}, its keys are {members}"
    last = {name.rsplit(".", 1)[-1]: name for name in known}  # a key whose section was left out
    name = key.rsplit(".", 1)[-1]
    hint = did_you_mean(key, known) or (f"did you mean {last[name]}?" if name in last else None)
    return f"{key}: {hint}" if hint else f"{key}: no such key; --cfg job prints them all"


def _missing_extra(message: str) -> str | None:
    """What to install, if `message` is Hydra's that a launcher does not exist."""
    found = re.search(rf"'hydra/launcher/({'|'.join(EXTRAS)})'", message)
    return found and f"the launcher {found[1]} is not installed: pip install 'rfdetr-train[{EXTRAS[found[1]]}]'"
