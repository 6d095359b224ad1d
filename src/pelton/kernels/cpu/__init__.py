"""The C++ kernels of csrc: `extension` is their module, None where they were not built.

ELEMENT_TYPES are the types that they take, by the number that stands for each.
"""

import importlib
import logging
from types import ModuleType

import torch  # loaded before the extension, which shares its OpenMP runtime by soname

logger = logging.getLogger(__name__)

ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1}  # csrc/element_type.h

extension: ModuleType | None
try:
    extension = importlib.import_module("pelton.kernels.cpu._cpu")
except ImportError as error:
    extension = None
    logger.warning(
        "the CPU kernels are missing (%s): reference operations run instead, many times slower, and a result may "
        "depend on its neighbours in the batch; install g++ 12 or newer and reinstall pelton",
        error,
    )
