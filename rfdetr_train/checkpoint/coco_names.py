"""The 80 classes of COCO (arXiv 1405.0312) and their sparse category ids, which the published class logits follow."""

_UNUSED_IDS = {0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
_NAMES = """
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella, handbag,
tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard,
tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot,
hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv, laptop, mouse, remote,
keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear,
hair drier, toothbrush
"""
_used_ids = [category_id for category_id in range(91) if category_id not in _UNUSED_IDS]

COCO_NAMES = dict(zip(_used_ids, " ".join(_NAMES.split()).split(", "), strict=True))
"""Category id, 1 to 90, -> name."""
COCO_LOGITS = tuple(COCO_NAMES.get(category_id) for category_id in range(91))
"""What each of the 91 logits of a published model stands for; None for an id that COCO does not use."""
