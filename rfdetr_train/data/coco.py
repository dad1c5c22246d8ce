"""COCO data sets: Roboflow's layout, with a file in each split's folder, and the plain one."""

import re
from pathlib import Path

import numpy as np

from rfdetr_train.data.coco_boxes import box_of_segmentation
from rfdetr_train.data.coco_tables import Table, area_of, box_xywh_of, file_name_of, is_crowd, read_tables, size_px_of
from rfdetr_train.data.listing import listed
from rfdetr_train.data.raw_split import RawSplit
from rfdetr_train.data.reader import SPLIT_NAMES, UNKNOWN_SIZE_PX, Reader, any_case
from rfdetr_train.errors import UserError

ROBOFLOW_FILE = "_annotations.coco.json"
_PLAIN_NAMES = {**SPLIT_NAMES, "train": ("train", "default", "result")}  # as CVAT and Label Studio call their only one


class CocoReader(Reader):
    """The ids of pictures and categories are the file's own, and decide."""

    LAYOUT = f"{{split}}/{ROBOFLOW_FILE}, annotations/{{split}}.json or annotations/instances_{{split}}2017.json"

    def sources(self, split: str) -> list[Path]:
        folders = [any_case(self.root, name) for name in SPLIT_NAMES[split]]
        roboflow = [folder / ROBOFLOW_FILE for folder in folders if (folder / ROBOFLOW_FILE).is_file()]
        files = [*sorted((self.root / "annotations").glob("*.json")), *sorted(self.root.glob("*.json"))]
        return roboflow or [file for file in files if _plain_stem(file, split)]

    def read(self, split: str, source: Path) -> RawSplit:
        images, annotations, categories = read_tables(source)
        stem = _plain_stem(source, split)
        names = dict.fromkeys((stem, *SPLIT_NAMES[split]))  # in order, each once
        plain = [any_case(self.root / top, name) for name in names for top in ("", "images")]
        plain += [self.root / "images", self.root]
        file_names = images.column(file_name_of)
        folder = self.picture_folder(plain if stem else [source.parent], file_names, source)
        file_names = self.inside_root(folder, file_names, source)
        sizes_px = self.sizes_px(folder, file_names, images.column(size_px_of))
        image_ids, annotation_ids = images.integers("id"), annotations.integers("id")
        size_of_id = dict(zip(image_ids.tolist(), map(tuple, sizes_px.tolist()), strict=True))
        return RawSplit(
            source=source,
            folder=folder,
            file_names=file_names,
            image_ids=image_ids,
            sizes_px=sizes_px,
            categories=categories,
            names_decide=False,
            box_image_ids=annotations.integers("image_id"),
            category_ids=annotations.integers("category_id"),
            boxes_xywh=_boxes(annotations, size_of_id, source),
            areas=np.array(annotations.column(area_of), dtype=np.float64),
            crowd=np.array(annotations.column(is_crowd), dtype=bool),
            describe=lambda rows: "annotation ids " + listed(annotation_ids[list(rows)]),
            box_ids=annotation_ids,
        )


def _plain_stem(file: Path, split: str) -> str:
    """`train2017` of instances_train2017.json; COCO's own captions_ and person_keypoints_ files are not meant."""
    match = re.fullmatch(
        rf"(instances_)?(?P<stem>({'|'.join(_PLAIN_NAMES[split])})(\d{{4}})?)\.json", file.name, re.IGNORECASE
    )
    return match["stem"] if match else ""


def _boxes(annotations: Table, size_of_id: dict[int, tuple[int, int]], source: Path) -> np.ndarray:
    """Their boxes, those around segmentations where no bbox is given."""
    boxes = np.array(annotations.column(box_xywh_of), dtype=np.float64).reshape(-1, 4)
    for number in np.flatnonzero(np.isnan(boxes[:, 0])):
        row = annotations.rows[number]
        size_px = size_of_id.get(row.image_id)
        try:
            boxes[number] = box_of_segmentation(row.segmentation, size_px if size_px != UNKNOWN_SIZE_PX else None)
        except UserError as error:
            raise UserError(f"{source}: annotation {row.id}: {error}") from error
    return boxes
