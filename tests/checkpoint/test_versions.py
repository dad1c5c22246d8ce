"""What a run's numbers depend on."""

from importlib import metadata

import PIL
import torch

from rfdetr_train.checkpoint.versions import versions
from rfdetr_train.data import image_file


def test_the_jpeg_decoder_is_the_one_that_reads(monkeypatch):
    used = "simplejpeg" if image_file.simplejpeg else "pillow"
    assert versions()["jpeg_decoder"].startswith(f"{used} ")
    assert versions()["torch"] == torch.__version__

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert versions()["jpeg_decoder"].startswith(f"pillow {PIL.__version__}, libjpeg-turbo ")
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    assert versions()["jpeg_decoder"] == "simplejpeg 1.2.3"
