"""`python -m rfdetr_train doctor data=auto data.root=PATH`: what is wrong with a data set, before it is trained on."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from rfdetr_train.boxes import xywh_to_xyxy
from rfdetr_train.commands.training_data import training_sides
from rfdetr_train.config import DoctorConfig
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.doctor.examination import Examination, examine
from rfdetr_train.data.doctor.examined import EXAMPLES, SEVERITIES, ExaminedSplit, Finding, Place
from rfdetr_train.data.image_file import read_image
from rfdetr_train.engine.run_plots import augmented_pictures
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.console import print_table
from rfdetr_train.loggers.doctor_plots import FIGURES
from rfdetr_train.loggers.files import write_json
from rfdetr_train.loggers.page import as_figures, as_jpeg, write_page
from rfdetr_train.loggers.progress import Counter
from rfdetr_train.loggers.sheet import Picture, draw_sheet

PREVIEW_SHEETS = 2
log = logging.getLogger(__name__)


def doctor(config: DoctorConfig, run_dir: Path) -> None:
    """Examine the data set that a training run of `config` would take; doctor.json and doctor.html tell the findings.

    Raises: UserError, once all is written, for findings as severe as `fail_on`.
    """
    with Counter("reading sizes of pictures") as headers, Counter("looking at pictures") as pictures:
        examination = examine(config.data, config.model, headers.show, pictures.show)
    splits, findings = examination.splits, examination.findings
    (run_dir / "plots").mkdir(parents=True, exist_ok=True)
    plain = {"root": config.data.root, "findings": [asdict(f) for f in findings]}
    sheets = [draw_finding(f, splits, run_dir / "plots", config.num_pictures) for f in findings]
    write_json(run_dir / "doctor.json", {**plain, **examination.statistics})
    write_page(
        run_dir / "doctor.html",
        "doctor.html.jinja",
        name=config.data.root,
        status=in_short(findings),
        findings=[asdict(f) | {"sheet": sheet and as_jpeg(sheet)} for f, sheet in zip(findings, sheets, strict=True)],
        figures=as_figures(FIGURES, examination.statistics),
        previews=[as_jpeg(sheet) for sheet in draw_previews(config, examination, run_dir / "plots")],
        augmentation=config.augmentation.name,
        most_examples=EXAMPLES,
        **{key: examination.statistics[key] for key in ("splits", "classes")},
    )
    show(examination)
    log.info("report: %s", run_dir / "doctor.html")
    grave = [f for f in findings if SEVERITIES.index(f.severity) <= SEVERITIES.index(config.fail_on)]
    if grave:
        raise UserError(f"{config.data.root}: {in_short(grave)}; {run_dir / 'doctor.html'} says what to do about them")


def in_short(findings: Sequence[Finding]) -> str:
    """`2 errors, 1 warning`."""
    counts = {severity: sum(f.severity == severity for f in findings) for severity in SEVERITIES}
    told = [f"{count} {severity}{'s' * (count > 1)}" for severity, count in counts.items() if count]
    return ", ".join(told) or "nothing found"


def draw_finding(finding: Finding, splits: dict[str, ExaminedSplit], folder: Path, num_pictures: int) -> Path | None:
    """A sheet of pictures that show the finding, with the boxes that it is about."""
    if not finding.places or not num_pictures:
        return None
    names = sorted({name for split in splits.values() for name in split.names})
    pictures = [_picture(splits[place.split], place, names) for place in finding.places[:num_pictures]]
    path = folder / f"{finding.kind}_{finding.split}.png"
    draw_sheet(path, pictures, names)
    return path


def _picture(split: ExaminedSplit, place: Place, names: list[str]) -> Picture:
    image = read_image(split.path(place.picture), max_megapixels=np.inf)
    height, width = split.raw.sizes_px[place.picture]
    boxes_xyxy = xywh_to_xyxy(split.raw.boxes_xywh[place.rows])
    scale = [image.shape[2] / width, image.shape[1] / height] * 2
    return Picture(image, boxes_xyxy * scale, [names.index(split.names[row]) for row in place.rows], [], [], [],
                   title=f"{split.name}/{split.raw.file_names[place.picture]}")  # fmt: skip


def draw_previews(config: DoctorConfig, examination: Examination, folder: Path) -> list[Path]:
    """Sheets of training pictures as the augmentation makes them."""
    train = examination.train
    if not config.preview or train is None:
        if config.preview:
            log.warning("preview=true: training refuses the train split, so there is nothing to show")
        return []
    pictures = augmented_pictures(
        train,
        config.augmentation,
        training_sides(config),
        num_pictures=min(PREVIEW_SHEETS * config.num_pictures, len(train)),
        seed=config.seed,
        placement=Placement.of(config.data.resize, config.model),
    )
    sheets = [pictures[start : start + config.num_pictures] for start in range(0, len(pictures), config.num_pictures)]
    paths = [folder / f"augmented_{number}.png" for number in range(1, len(sheets) + 1)]
    for path, sheet in zip(paths, sheets, strict=True):
        draw_sheet(path, sheet, train.label_map.names)
    return paths


def show(examination: Examination) -> None:
    """Tables of counts and findings."""
    statistics = examination.statistics
    columns = ["split", "pictures", "boxes", "crowds", "sizes"]
    rows = [
        [name, s["pictures"], s["boxes"], s["crowds"], ", ".join(f"{n} of {size}" for size, n in s["sizes"].items())]
        for name, s in statistics["splits"].items()
    ]
    print_table("splits", columns, rows)
    counts = statistics["classes"]
    print_table(
        "boxes by class", ["class", *examination.splits], [[name, *row.values()] for name, row in counts.items()]
    )
    table = [
        [f.severity, f.split or "all", f.count, f.what, f.examples[0].splitlines()[0], f.remedy]
        for f in examination.findings
    ]
    columns = ["severity", "split", "count", "finding", "an example", "remedy"]
    print_table("findings" if table else "nothing found", columns, table)
