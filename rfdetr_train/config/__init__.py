"""Every key of the application: its type, its default, its meaning and what is refused.

No torch, hydra or omegaconf here, so that a config is checked in milliseconds. `conf/` only chooses values for these
dataclasses; a docstring under a field says what the key does. One step is one optimizer step, everywhere.
"""

from rfdetr_train.config.augmentation import *  # noqa: F403
from rfdetr_train.config.commands import *  # noqa: F403
from rfdetr_train.config.data import *  # noqa: F403
from rfdetr_train.config.model import *  # noqa: F403
from rfdetr_train.config.optimizer import *  # noqa: F403
from rfdetr_train.config.schedule import *  # noqa: F403
from rfdetr_train.config.training import *  # noqa: F403
